//! The requests of the control API and of metrics: the callers of requests, and access control. gRPC and metrics are routes of a router.

use std::net::IpAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use tonic::Code;
use tonic::codegen::Service as _;
use ultima_grpc::connections::Peer;
use ultima_grpc::server::{Incoming, Protocol, Serve, TlsSession, Version};

use super::access::{Caller, METRICS, admit};
use super::call_rates::CallRates;

/// The routes of a server, behind access control.
#[derive(Clone)]
pub struct Api {
    /// The routes.
    pub router: Router,
    /// The rates of clients' calls.
    pub rates: CallRates,
}

/// The server's HTTP.
pub const PROTOCOL: Protocol = Protocol {
    version: Version::Any,
    // Interval of pings to an idle client.
    keepalive: Duration::from_secs(2),
};

impl Serve for Api {
    type Client = Option<Caller>;
    type Body = Body;

    fn client(&self, from: Option<IpAddr>, tls: Option<&TlsSession>) -> Option<Caller> {
        let is_remote = from.is_some_and(|from| !from.is_loopback());
        match tls {
            Some(tls) => Caller::certified(tls.peer_certificates()),
            None => Some(Caller::Trusted { is_remote }),
        }
    }

    async fn answer(
        mut self,
        caller: Option<Caller>,
        peer: Peer,
        mut request: Request<Incoming>,
    ) -> Response {
        let path = request.uri().path();
        let (caller, in_progress) = match admit(&self.rates, caller, &peer, path) {
            Ok(admitted) => admitted,
            Err(refused) if path == METRICS.0 => {
                let code = match refused.code() {
                    Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
                    Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
                    _ => StatusCode::FORBIDDEN,
                };
                return (code, refused.message().to_owned()).into_response();
            }
            Err(refused) => return refused.into_http(),
        };
        request.extensions_mut().insert(caller);
        let Ok(answer) = self.router.call(request).await;
        answer.map(|body| Body::new(in_progress.until_sent(body)))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::routing::get;
    use futures_util::stream::{self, StreamExt as _};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::watch;
    use tokio::time::sleep;
    use ultima_grpc::connections::{Connections, Limits};
    use ultima_grpc::server::Connection;

    use super::*;
    use crate::server::call_rates::RateLimit;

    const LIMITS: Limits = Limits {
        total: 3,
        from_one: 3,
        shared: 1,
    };

    const IDLE: Duration = Duration::from_secs(30);

    /// A client that asks for metrics over HTTP/1.1.
    async fn client(connections: &Connections, metrics: Body) -> DuplexStream {
        let (ours, mut theirs) = duplex(1 << 16);
        let metrics = std::sync::Mutex::new(Some(metrics));
        let take = async move || metrics.lock().unwrap().take().expect("one request");
        let take = std::sync::Arc::new(take);
        let api = Api {
            router: Router::new().route(METRICS.0, get(async move || take().await)),
            rates: CallRates::new(RateLimit::default()),
        };
        let (place, _evicted) = connections.admit(None).expect("room");
        tokio::spawn(async move {
            let (_stop, stop) = watch::channel(());
            let connection = Connection {
                protocol: PROTOCOL,
                service: api,
                from: None,
                place,
                stop,
            };
            connection.serve(Box::new(ours), None).await;
        });
        let request = b"GET /metrics HTTP/1.1\r\nhost: here\r\n\r\n";
        theirs.write_all(request).await.unwrap();
        theirs
    }

    async fn read(from: &mut DuplexStream) -> String {
        let mut bytes = [0; 4096];
        let count = from.read(&mut bytes).await.unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_in_progress_until_its_body_is_sent() {
        let connections = Connections::new(LIMITS, IDLE);
        let parts = stream::iter(["first", "second"]).then(async |part| {
            sleep(3 * IDLE).await;
            Ok::<_, Infallible>(part)
        });
        let mut client = client(&connections, Body::from_stream(parts)).await;
        let mut answer = String::new();
        while !answer.contains("second") {
            let more = read(&mut client).await;
            assert!(!more.is_empty(), "the connection has ended: {answer}");
            answer += &more;
        }
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn readers_of_metrics_leave_places_to_operators() {
        let connections = Connections::new(LIMITS, IDLE);
        let mut first = client(&connections, Body::from("text")).await;
        assert!(read(&mut first).await.starts_with("HTTP/1.1 200 "));
        let mut second = client(&connections, Body::from("text")).await;
        let answer = read(&mut second).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("no place for another"), "{answer}");
        drop(first);
        sleep(Duration::from_millis(1)).await;
        let mut third = client(&connections, Body::from("text")).await;
        assert!(read(&mut third).await.starts_with("HTTP/1.1 200 "));
    }
}
