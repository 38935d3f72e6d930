//! Long answers of a controller, up to the limit and beyond.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use prost::Message as _;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use ultima_api::client::{Client, ClientError, MAX_ANSWER};
use ultima_api::v1::control_server::SERVICE_NAME;
use ultima_api::v1::{Job, ListJobsRequest, ListJobsResponse, Member};

/// A server with one answer to every call.
#[derive(Clone)]
struct Canned(Result<ListJobsResponse, Status>);

impl NamedService for Canned {
    const NAME: &'static str = SERVICE_NAME;
}

impl UnaryService<ListJobsRequest> for Canned {
    type Response = ListJobsResponse;
    type Future = BoxFuture<'static, Result<Response<ListJobsResponse>, Status>>;

    fn call(&mut self, _: Request<ListJobsRequest>) -> Self::Future {
        ready(self.0.clone().map(Response::new)).boxed()
    }
}

impl Service<http::Request<Body>> for Canned {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let canned = self.clone();
        async move {
            let codec = ProstCodec::<ListJobsResponse, ListJobsRequest>::default();
            Ok(Grpc::new(codec).unary(canned, request).await)
        }
        .boxed()
    }
}

/// The jobs that a client receives.
async fn listed(jobs: Vec<Job>) -> Result<Vec<Job>, ClientError> {
    heard(Ok(ListJobsResponse { jobs })).await
}

/// A client's result if ListJobs is answered like this.
async fn heard(answer: Result<ListJobsResponse, Status>) -> Result<Vec<Job>, ClientError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::builder().add_service(Canned(answer));
    let incoming = TcpIncoming::from(listener);
    let serving = tokio::spawn(server.serve_with_incoming(incoming));
    let jobs = Client::connect(&address).await?.jobs().await;
    serving.abort();
    jobs
}

fn member(rank: u32) -> Member {
    Member {
        rank,
        host: format!("leaf12-host{rank}"),
        mac: "02:00:00:00:00:01".into(),
        ip: "10.0.12.34".into(),
        udp_port: 46_110,
        switch: "leaf12".into(),
        switch_port: 34,
        source_index: 1000 + rank,
        ..Member::default()
    }
}

#[tokio::test]
async fn a_thousand_jobs_of_64_members_are_listed() {
    let job = |id| Job {
        name: format!("train{id}"),
        id,
        epoch: 1,
        members: (0..64).map(member).collect(),
        ..Job::default()
    };
    let jobs: Vec<Job> = (1..=1000).map(job).collect();
    let bytes: usize = jobs.iter().map(Job::encoded_len).sum();
    // tonic's default limit.
    assert!(bytes > 4 << 20, "{bytes}");
    assert_eq!(listed(jobs.clone()).await.unwrap(), jobs);
}

/// A member must not take the gRPC status for the end of its epoch.
#[tokio::test]
async fn an_answer_that_is_too_long_does_not_end_an_epoch() {
    let job = Job {
        remaining: "x".repeat(MAX_ANSWER),
        ..Job::default()
    };
    let error = listed(vec![job]).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLong { .. }), "{error:?}");
    assert!(!error.is_over());
    assert!(error.to_string().contains("is too long: "), "{error}");
}

/// Error texts with long names may exceed other clients' limits for headers.
#[tokio::test]
async fn a_long_rejection_is_received() {
    let text = "no, ".repeat(7_000);
    let refused = heard(Err(Status::not_found(&text))).await.unwrap_err();
    let ClientError::Refused { code, message, .. } = refused else {
        panic!("{refused}")
    };
    assert_eq!((code, message), (Code::NotFound, text));
}
