//! A P4Runtime client with the calls that tests need.

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};
use ultima_p4runtime::batch;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{
    Entity, ForwardingPipelineConfig, MasterArbitrationUpdate, ReadRequest,
    SetForwardingPipelineConfigRequest, StreamMessageRequest, Update, WriteRequest, entity,
    set_forwarding_pipeline_config_request as set_config, stream_message_request,
    stream_message_response,
};

/// Our election id. A target under test has no other controller.
const ELECTION_ID: u128 = 1;

/// Why a request to the target fails.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// The target responds with an error.
    #[error("{code:?}: {message}")]
    Refused {
        /// The code of the update, or of the whole request.
        code: Code,
        /// The target's message.
        message: String,
    },
    /// There is no connection.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// Another controller is the primary.
    #[error("device {0} has another primary controller; stop that one")]
    NotPrimary(u64),
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        // A batch of one has one outcome.
        let outcomes = batch::outcomes(&status).unwrap_or_default();
        let (code, message) = match &outcomes[..] {
            [one] => (Code::from(one.canonical_code), one.message.clone()),
            _ => (status.code(), status.message().to_owned()),
        };
        ClientError::Refused { code, message }
    }
}

impl ClientError {
    /// True if the target does not implement the request.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, ClientError::Refused { code, .. } if *code == Code::Unimplemented)
    }
}

/// The primary controller of one device.
pub struct Client {
    rpc: P4RuntimeClient<Channel>,
    device_id: u64,
    /// Keeps the stream open, so that this client stays the primary.
    _stream: mpsc::Sender<StreamMessageRequest>,
    /// Reads messages from the stream.
    reader: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // The task would keep the connection open.
        self.reader.abort();
    }
}

impl Client {
    /// Connects and becomes the primary.
    pub async fn connect(channel: Channel, device_id: u64) -> Result<Client, ClientError> {
        let mut rpc = P4RuntimeClient::new(channel);
        let (stream, requests) = mpsc::channel(1);
        let update = MasterArbitrationUpdate {
            device_id,
            election_id: Some(ELECTION_ID.into()),
            ..MasterArbitrationUpdate::default()
        };
        let update = stream_message_request::Update::Arbitration(update);
        let request = StreamMessageRequest {
            update: Some(update),
        };
        // The channel has room and its receiver exists.
        let _ = stream.send(request).await;
        let responses = rpc.stream_channel(ReceiverStream::new(requests)).await?;
        let mut responses = responses.into_inner();
        let first = responses.message().await?.and_then(|first| first.update);
        match first {
            Some(stream_message_response::Update::Arbitration(update))
                if update.status.as_ref().is_none_or(|status| status.code == 0) => {}
            _ => return Err(ClientError::NotPrimary(device_id)),
        }
        // Tests ignore packet-ins and digests, but the target must be able to send them.
        let reader =
            tokio::spawn(async move { while let Ok(Some(_)) = responses.message().await {} });
        Ok(Client {
            rpc,
            device_id,
            _stream: stream,
            reader,
        })
    }

    /// Sets the target's program.
    pub async fn set_pipeline(
        &mut self,
        config: ForwardingPipelineConfig,
    ) -> Result<(), ClientError> {
        let request = SetForwardingPipelineConfigRequest {
            device_id: self.device_id,
            election_id: Some(ELECTION_ID.into()),
            action: set_config::Action::VerifyAndCommit.into(),
            config: Some(config),
            ..SetForwardingPipelineConfigRequest::default()
        };
        self.rpc.set_forwarding_pipeline_config(request).await?;
        Ok(())
    }

    /// Writes one update.
    pub async fn write(&mut self, update: Update) -> Result<(), ClientError> {
        let request = WriteRequest {
            device_id: self.device_id,
            election_id: Some(ELECTION_ID.into()),
            updates: vec![update],
            ..WriteRequest::default()
        };
        self.rpc.write(request).await?;
        Ok(())
    }

    /// Reads the entities of a request.
    pub async fn read(&mut self, entity: Entity) -> Result<Vec<entity::Entity>, ClientError> {
        let request = ReadRequest {
            device_id: self.device_id,
            entities: vec![entity],
            ..ReadRequest::default()
        };
        let mut stream = self.rpc.read(request).await?.into_inner();
        let mut found = Vec::new();
        while let Some(response) = stream.message().await? {
            let entities = response.entities.into_iter();
            found.extend(entities.filter_map(|entity| entity.entity));
        }
        Ok(found)
    }
}
