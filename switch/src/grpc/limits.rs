//! Limits of P4Runtime calls: message length, number of concurrent calls, and deadline. A call takes its place after its request
//! has been received, which has limits of its own.
//!
//! `ultima_p4runtime::bounded` limits the memory of a decoded message.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService};
use ultima_grpc::calls::{Answer, CallLimits};
use ultima_grpc::receive;
use ultima_p4runtime::bounded::BoundedCodec;
use ultima_p4runtime::v1::p4_runtime_server::P4RuntimeServer;

use super::write::Write;
use super::{MAX_CALLS, Service as Calls};

/// Longest program with its P4Info, in bytes.
const PIPELINE_CONFIG: usize = 64 << 20;
/// Longest message of a controller's stream, in bytes: the longest frame with its metadata.
const STREAM_MESSAGE: usize = 256 << 10;
/// Longest request of other calls, in bytes: gRPC's default.
const REQUEST: usize = 4 << 20;

/// Number of programs that are received and loaded at once. Others wait.
const PIPELINE_CONFIGS: usize = 2;
/// Number of reads at once. Others wait. Waiting responses have a bound of their own.
const READS: usize = 8;
/// Number of other calls at once. They never wait for reads.
const REQUESTS: usize = 16;
/// Deadline for receiving and loading a program.
const PIPELINE_CONFIG_TIME: Duration = Duration::from_secs(300);
/// Deadline for other calls.
const REQUEST_TIME: Duration = Duration::from_secs(60);
/// Number of requests of a class that are being received: several times the calls of one connection.
const RECEIVED: usize = 4 * MAX_CALLS;
/// Memory of received requests of a class, as a number of the longest ones.
const RECEIVED_LONGEST: usize = 2;
/// Longest time without a part of a request.
const SILENCE: Duration = Duration::from_secs(5);

/// Calls that share limits.
#[derive(Clone)]
struct Class {
    server: P4RuntimeServer<Calls>,
    calls: CallLimits,
}

/// P4Runtime's server with the limits of each call.
#[derive(Clone)]
pub(crate) struct Limited {
    pipeline_config: Class,
    /// Streams have no deadline. Arbitration bounds their number.
    stream: P4RuntimeServer<Calls>,
    read: Class,
    other: Class,
    calls: Arc<Calls>,
}

impl Limited {
    pub(super) fn new(calls: Calls) -> Limited {
        let calls = Arc::new(calls);
        let server =
            |longest| P4RuntimeServer::from_arc(calls.clone()).max_decoding_message_size(longest);
        let class = |longest, places, time| Class {
            server: server(longest),
            calls: CallLimits::new(
                places,
                time,
                receive::Limits {
                    longest,
                    count: RECEIVED,
                    memory: RECEIVED_LONGEST * places * longest,
                    silence: SILENCE,
                },
            ),
        };
        Limited {
            pipeline_config: class(PIPELINE_CONFIG, PIPELINE_CONFIGS, PIPELINE_CONFIG_TIME),
            stream: server(STREAM_MESSAGE),
            read: class(REQUEST, READS, REQUEST_TIME),
            other: class(REQUEST, REQUESTS, REQUEST_TIME),
            calls,
        }
    }
}

impl Class {
    fn call(&self, request: http::Request<Body>) -> Answer<Infallible> {
        let mut server = self.server.clone();
        self.calls.run(request, move |request| server.call(request))
    }
}

impl Service<http::Request<Body>> for Limited {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer<Infallible> {
        match request.uri().path().rsplit('/').next() {
            Some("SetForwardingPipelineConfig") => self.pipeline_config.call(request),
            Some("StreamChannel") => self.stream.call(request),
            Some("Read") => self.read.call(request),
            Some("Write") => {
                let write = Write(self.calls.clone());
                self.other.calls.run(request, |request| async move {
                    let grpc = Grpc::new(BoundedCodec::default());
                    let mut grpc = grpc.apply_max_message_size_config(Some(REQUEST), None);
                    Ok(grpc.unary(write, request).await)
                })
            }
            _ => self.other.call(request),
        }
    }
}

impl NamedService for Limited {
    const NAME: &'static str = P4RuntimeServer::<Calls>::NAME;
}
