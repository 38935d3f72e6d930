//! The client of one switch.

use std::error::Error as _;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};
use ultima_p4runtime::batch;
use ultima_p4runtime::tls::ClientTls;
use ultima_p4runtime::transport::{self, one_line, root_cause};
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{
    self, DigestList, Entity, ForwardingPipelineConfig, GetForwardingPipelineConfigRequest,
    ReadRequest, SetForwardingPipelineConfigRequest, StreamMessageRequest, StreamMessageResponse,
    Uint128, Update, WriteRequest, forwarding_pipeline_config,
    get_forwarding_pipeline_config_request, set_forwarding_pipeline_config_request, write_request,
};

use super::error::{ConnectError, RpcError, WriteError, failed};
use super::session::{self, Mastership, Session};
use crate::program::Program;

/// How long one call may take before the switch counts as silent. Loading a program is the
/// slowest; BMv2 takes well under a second for ours.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before the next attempt while a switch refuses connections.
const RETRY: Duration = Duration::from_millis(100);
/// Updates of one WriteRequest. A request stays far below the 4 MiB that gRPC servers accept.
const BATCH: usize = 1000;
/// The largest answer that is accepted; a read of everything comes in pieces below this.
const MAX_RESPONSE: usize = 64 << 20;

/// One device behind a P4Runtime server.
#[derive(Clone, Debug)]
pub struct Device {
    /// The switch's name, for errors.
    pub name: String,
    /// Its P4Runtime server, `HOST:PORT`.
    pub grpc: String,
    /// Its id there.
    pub device_id: u64,
    /// How to speak to a server that serves TLS; none: in plain text.
    pub tls: Option<ClientTls>,
}

/// A connection to one switch as its primary. Dropping it gives mastership up.
pub struct SwitchClient {
    device: Device,
    election_id: u128,
    rpc: P4RuntimeClient<Channel>,
    session: Session,
}

/// Asks for mastership; answers with the stream's two directions, what the switch says, and the
/// election id that it says it of.
async fn arbitrate(
    rpc: &mut P4RuntimeClient<Channel>,
    device_id: u64,
    election_id: u128,
) -> Result<
    (
        mpsc::Sender<StreamMessageRequest>,
        Streaming<StreamMessageResponse>,
        Mastership,
        u128,
    ),
    Status,
> {
    let first = session::arbitration(device_id, election_id);
    let (requests, outgoing) = session::requests(first);
    let mut responses = rpc.stream_channel(outgoing).await?.into_inner();
    let answer = session::next(&mut responses).await?;
    let Mastership::Vacant { highest } = answer else {
        return Ok((requests, responses, answer, election_id));
    };
    // Somebody with a higher id was primary and has gone.
    let again = session::arbitration(device_id, highest);
    // If nobody takes it the stream has ended, which the next answer says.
    let _ = requests.send(again).await;
    let answer = session::next(&mut responses).await?;
    Ok((requests, responses, answer, highest))
}

impl SwitchClient {
    /// Connects to `device` and becomes its primary, trying for as long as `patience` says: a
    /// switch may just be starting.
    ///
    /// # Errors
    /// The last attempt's, when `patience` ends; at once when the switch answers and refuses for
    /// another reason than an election id that is in use.
    pub async fn connect(
        device: Device,
        election_id: u128,
        patience: Duration,
    ) -> Result<Self, ConnectError> {
        let deadline = Instant::now() + patience;
        let no_answer = |reason: String| ConnectError::NoAnswer {
            switch: device.name.clone(),
            grpc: device.grpc.clone(),
            timeout: patience,
            reason,
        };

        let endpoint = transport::endpoint(&device.grpc, device.tls.as_ref())
            .map_err(|error| no_answer(error.to_string()))?
            .tcp_nodelay(true)
            .tcp_keepalive(Some(CALL_TIMEOUT))
            // A failed batch tells of each of its updates in a trailer.
            .http2_max_header_list_size(batch::header_list_size(BATCH));
        let channel = loop {
            let reason = match timeout_at(deadline, endpoint.connect()).await {
                Ok(Ok(channel)) => break channel,
                Ok(Err(error)) => root_cause(&error),
                Err(_) => return Err(no_answer("no connection".into())),
            };
            if Instant::now() + RETRY >= deadline {
                return Err(no_answer(reason));
            }
            sleep(RETRY).await;
        };

        let mut rpc = P4RuntimeClient::new(channel).max_decoding_message_size(MAX_RESPONSE);
        let (requests, responses, mastership, election_id) = loop {
            let arbitration = arbitrate(&mut rpc, device.device_id, election_id);
            match timeout_at(deadline, arbitration).await {
                Err(_) => return Err(no_answer("no answer to arbitration".into())),
                Ok(Ok(answer)) => break answer,
                // Another stream has this election id (P4Runtime §5.3), which may be that of a
                // controller that just ended: switches notice late.
                Ok(Err(status))
                    if status.code() == Code::InvalidArgument
                        && Instant::now() + RETRY < deadline =>
                {
                    sleep(RETRY).await;
                }
                Ok(Err(status)) => return Err(refused(&device, &status)),
            }
        };
        let session = Session::start(requests, responses);
        match mastership {
            Mastership::Primary => Ok(SwitchClient {
                device,
                election_id,
                rpc,
                session,
            }),
            Mastership::Backup { message } => Err(ConnectError::NotPrimary {
                switch: device.name,
                grpc: device.grpc,
                message,
            }),
            Mastership::Vacant { .. } => Err(ConnectError::NotPrimary {
                switch: device.name,
                grpc: device.grpc,
                message: "it has no primary and takes none".into(),
            }),
            Mastership::Lost { reason } => Err(ConnectError::Refused {
                switch: device.name,
                grpc: device.grpc,
                message: reason,
            }),
        }
    }

    /// The device it is connected to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether we are still primary; changes when that does.
    pub fn mastership(&self) -> watch::Receiver<Mastership> {
        self.session.mastership()
    }

    /// The digests that the switch sends, acknowledged already; none for whoever asks a second time.
    pub fn digests(&self) -> Option<mpsc::Receiver<DigestList>> {
        self.session.digests()
    }

    /// Lists of digests that came while too many others waited to be read: they are gone.
    pub fn digest_lists_dropped(&self) -> u64 {
        self.session.digest_lists_dropped()
    }

    /// Verifies a program and puts it to work, which empties all tables.
    ///
    /// # Errors
    /// The switch refuses the program, or the call fails.
    pub async fn set_pipeline(&self, program: &Program) -> Result<(), RpcError> {
        use set_forwarding_pipeline_config_request::Action;
        let cookie = program.cookie();
        let request = SetForwardingPipelineConfigRequest {
            device_id: self.device.device_id,
            election_id: Some(Uint128::from(self.election_id)),
            action: Action::VerifyAndCommit.into(),
            config: Some(ForwardingPipelineConfig {
                p4info: Some(program.names().p4info().clone()),
                p4_device_config: program.device_config().to_vec(),
                cookie: Some(forwarding_pipeline_config::Cookie { cookie }),
            }),
            ..Default::default()
        };
        answered(self.rpc.clone().set_forwarding_pipeline_config(request)).await?;
        Ok(())
    }

    /// The cookie of the program at work; none where there is no program or it came without.
    ///
    /// # Errors
    /// The call fails.
    pub async fn pipeline_cookie(&self) -> Result<Option<u64>, RpcError> {
        use get_forwarding_pipeline_config_request::ResponseType;
        let request = GetForwardingPipelineConfigRequest {
            device_id: self.device.device_id,
            response_type: ResponseType::CookieOnly.into(),
        };
        match answered(self.rpc.clone().get_forwarding_pipeline_config(request)).await {
            Ok(response) => Ok(response
                .config
                .and_then(|config| config.cookie)
                .map(|it| it.cookie)),
            // "No program yet" (P4Runtime §7.4).
            Err(RpcError::Status(status)) if status.code() == Code::FailedPrecondition => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes `updates` in order, in one batch or as many as their number takes. Each is tried,
    /// whatever becomes of the others (CONTINUE_ON_ERROR, all that BMv2 has).
    ///
    /// # Errors
    /// Of the first batch in which something failed; later batches are not sent, and of their
    /// updates the outcome says ABORTED.
    pub async fn write(&self, updates: Vec<Update>) -> Result<(), WriteError> {
        let total = updates.len();
        let mut sent = 0;
        for batch in updates.chunks(BATCH) {
            let request = WriteRequest {
                device_id: self.device.device_id,
                election_id: Some(Uint128::from(self.election_id)),
                updates: batch.to_vec(),
                atomicity: write_request::Atomicity::ContinueOnError.into(),
                ..Default::default()
            };
            match answered(self.rpc.clone().write(request)).await {
                Ok(_) => sent += batch.len(),
                Err(RpcError::Status(status)) => {
                    let failed_whole = RpcError::Status(status.clone());
                    return Err(match batch::outcomes(&status) {
                        Some(outcomes) if describes(&outcomes, batch) => {
                            let not_sent = batch::failure(Code::Aborted, "not sent");
                            let mut all = vec![batch::success(); sent];
                            all.extend(outcomes);
                            all.resize(total, not_sent);
                            WriteError::Updates(all)
                        }
                        // Nothing of this batch was done, but the batches before it were.
                        _ if sent > 0 && !failed_whole.is_uncertain() => {
                            let failed = batch::failure(status.code(), status.message());
                            let mut all = vec![batch::success(); sent];
                            all.resize(total, failed);
                            WriteError::Updates(all)
                        }
                        _ => failed_whole.into(),
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads everything that matches one of `entities`.
    ///
    /// # Errors
    /// The call fails.
    pub async fn read(&self, entities: Vec<Entity>) -> Result<Vec<Entity>, RpcError> {
        let request = ReadRequest {
            device_id: self.device.device_id,
            entities,
            ..Default::default()
        };
        let mut rpc = self.rpc.clone();
        let all = async move {
            let mut responses = rpc.read(request).await?.into_inner();
            let mut read = Vec::new();
            while let Some(response) = responses.message().await? {
                read.extend(response.entities);
            }
            Ok(Response::new(read))
        };
        answered(all).await
    }
}

/// Whether a failed batch's outcomes can be believed: one for each update, and one that failed.
fn describes(outcomes: &[v1::Error], batch: &[Update]) -> bool {
    outcomes.len() == batch.len() && outcomes.iter().any(failed)
}

/// Waits for a call's answer, not for ever.
async fn answered<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, RpcError> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(RpcError::Status(status)),
        Err(_) => Err(RpcError::Timeout(CALL_TIMEOUT)),
    }
}

/// The server ended the stream with `status` in answer to our arbitration (P4Runtime §5.3).
fn refused(device: &Device, status: &Status) -> ConnectError {
    let (switch, grpc) = (device.name.clone(), device.grpc.clone());
    if let Some(cause) = status.source() {
        // Made here, not there: the transport failed.
        return ConnectError::Broken {
            switch,
            grpc,
            reason: root_cause(cause),
            hint: match device.tls {
                None => "if it serves TLS, give it `tls` in the fabric",
                Some(_) => "if it serves known clients only, give `cert` and `key` in its `tls`",
            },
        };
    }
    let message = one_line(status.message());
    match status.code() {
        Code::NotFound => ConnectError::NoDevice {
            switch,
            grpc,
            device_id: device.device_id,
            message,
        },
        // The election id is in use: the other controller has it.
        Code::InvalidArgument => ConnectError::NotPrimary {
            switch,
            grpc,
            message,
        },
        _ => ConnectError::Refused {
            switch,
            grpc,
            message,
        },
    }
}
