//! The stubs over a connection on loopback: the outcomes of a failed batch at its client.

use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use ultima_p4runtime::batch;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::p4_runtime_server::{P4Runtime, P4RuntimeServer};
use ultima_p4runtime::v1::*;

/// A server that rejects deletions, with an error of a realistic length.
struct DeletesNothing;

const REFUSAL: &str = "table \"UltimaIngress.admission.source\": there is no entry with this key, \
                       so there is nothing to delete";

type Answers<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl P4Runtime for DeletesNothing {
    async fn write(
        &self,
        request: Request<WriteRequest>,
    ) -> Result<Response<WriteResponse>, Status> {
        let updates = request.into_inner().updates;
        let outcomes: Vec<_> = updates
            .iter()
            .map(|update| match update.r#type() {
                update::Type::Delete => batch::failure(Code::NotFound, REFUSAL),
                _ => batch::success(),
            })
            .collect();
        Err(batch::status(&outcomes))
    }

    type ReadStream = Answers<ReadResponse>;

    async fn read(&self, _: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        Err(Status::unimplemented("only Write"))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        _: Request<SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<SetForwardingPipelineConfigResponse>, Status> {
        Err(Status::unimplemented("only Write"))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        _: Request<GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<GetForwardingPipelineConfigResponse>, Status> {
        Err(Status::unimplemented("only Write"))
    }

    type StreamChannelStream = Answers<StreamMessageResponse>;

    async fn stream_channel(
        &self,
        _: Request<Streaming<StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        Err(Status::unimplemented("only Write"))
    }

    async fn capabilities(
        &self,
        _: Request<CapabilitiesRequest>,
    ) -> Result<Response<CapabilitiesResponse>, Status> {
        Err(Status::unimplemented("only Write"))
    }
}

/// A client of a fresh server that accepts `header_list_size` bytes of trailers, if given.
async fn client(header_list_size: Option<u32>) -> P4RuntimeClient<Channel> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().add_service(P4RuntimeServer::new(DeletesNothing));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let endpoint = match header_list_size {
        Some(size) => endpoint.http2_max_header_list_size(size),
        None => endpoint,
    };
    P4RuntimeClient::new(endpoint.connect().await.unwrap())
}

/// Deletions, each followed by an insertion.
fn updates(count: usize) -> Vec<Update> {
    let entry = TableEntry {
        table_id: 1,
        ..Default::default()
    };
    (0..count)
        .map(|n| match n % 2 {
            0 => Update::delete(entry.clone()),
            _ => Update::insert(entry.clone()),
        })
        .collect()
}

#[tokio::test]
async fn a_client_gets_every_outcome_of_a_large_batch() {
    const UPDATES: usize = 2000;
    let mut client = client(Some(batch::header_list_size(UPDATES))).await;
    let request = WriteRequest {
        updates: updates(UPDATES),
        ..Default::default()
    };
    let status = client.write(request).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unknown, "1000 of 2000 updates failed")
    );

    let outcomes = batch::outcomes(&status).unwrap();
    assert_eq!(outcomes.len(), UPDATES);
    for (n, outcome) in outcomes.iter().enumerate() {
        let expected = match n % 2 {
            0 => batch::failure(Code::NotFound, REFUSAL),
            _ => batch::success(),
        };
        assert_eq!(*outcome, expected, "update {n}");
    }
}

#[tokio::test]
async fn without_room_for_trailers_the_outcomes_are_lost() {
    let mut client = client(None).await;
    let small = WriteRequest {
        updates: updates(20),
        ..Default::default()
    };
    let status = client.write(small).await.unwrap_err();
    assert_eq!(
        batch::outcomes(&status).map(|outcomes| outcomes.len()),
        Some(20)
    );

    let large = WriteRequest {
        updates: updates(2000),
        ..Default::default()
    };
    let status = client.write(large).await.unwrap_err();
    assert_eq!(batch::outcomes(&status), None);
}
