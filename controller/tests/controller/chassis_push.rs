//! Pushes a switch's chassis configuration over gNMI to a server that stores it.

use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};
use ultima_controller::chassis_push::{PushError, push};
use ultima_gnmi::v0::g_nmi_server::{GNmi, GNmiServer};
use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{
    CapabilityRequest, CapabilityResponse, GetRequest, GetResponse, SetRequest, SetResponse,
    SubscribeRequest, SubscribeResponse,
};
use ultima_p4runtime::text;
use ultima_planner::chassis;
use ultima_planner::fabric::{self, Fabric};

/// Accepts one configuration and rejects all others.
#[derive(Clone, Default)]
struct Stratum(Arc<Mutex<Vec<SetRequest>>>);

#[tonic::async_trait]
impl GNmi for Stratum {
    type SubscribeStream = ReceiverStream<Result<SubscribeResponse, Status>>;

    async fn capabilities(
        &self,
        _: Request<CapabilityRequest>,
    ) -> Result<Response<CapabilityResponse>, Status> {
        Err(Status::unimplemented("not used in tests"))
    }

    async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        Err(Status::unimplemented("not used in tests"))
    }

    async fn set(&self, request: Request<SetRequest>) -> Result<Response<SetResponse>, Status> {
        let mut taken = self.0.lock().unwrap();
        if !taken.is_empty() {
            return Err(Status::failed_precondition("reboot\nrequired"));
        }
        taken.push(request.into_inner());
        Ok(Response::new(SetResponse::default()))
    }

    async fn subscribe(
        &self,
        _: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        Err(Status::unimplemented("not used in tests"))
    }
}

/// A testbed whose switch is at this address.
fn testbed(address: &str) -> Fabric {
    let text = include_str!("../../../topologies/tofino32.yaml");
    let line = text.lines().find(|line| line.contains("grpc:")).unwrap();
    let (before, _) = line.split_once("grpc:").unwrap();
    let text = text.replace(line, &format!("{before}grpc: \"{address}\""));
    fabric::parse(&text, "tofino32.yaml").unwrap()
}

#[tokio::test]
async fn stratum_receives_all_ports_as_one_text() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stratum = Stratum::default();
    let server = Server::builder().add_service(GNmiServer::new(stratum.clone()));
    let server = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let fabric = testbed(&address);
    let switch = &fabric.switches()[0];

    push(switch).await.unwrap();
    let said = stratum.0.lock().unwrap().pop().unwrap();
    let [root] = &said.replace[..] else {
        panic!("{said:?}")
    };
    assert!(root.path.as_ref().unwrap().elem.is_empty(), "the root");
    let Some(Value::BytesVal(bytes)) = root.val.as_ref().and_then(|it| it.value.as_ref()) else {
        panic!("{root:?}")
    };
    let expected = text::print(&chassis::stratum(switch).unwrap());
    assert_eq!(str::from_utf8(bytes), Ok(expected.as_str()));
    // Stratum could take another beginning for a binary message.
    assert!(expected.starts_with("description: "), "{expected}");

    push(switch).await.unwrap();
    match push(switch).await {
        Err(PushError::Refused { code, message, .. }) => {
            assert_eq!(code, Code::FailedPrecondition);
            assert!(!message.contains('\n'), "{message}");
        }
        other => panic!("{other:?}"),
    }
    server.abort();
    let _ = server.await;
    let gone = push(switch).await.unwrap_err();
    assert!(matches!(gone, PushError::NoAnswer { .. }), "{gone}");
}
