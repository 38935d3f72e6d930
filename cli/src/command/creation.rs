//! Creates the jobs of files: all of them, or none.

use anyhow::{Context, Result};
use ultima_controller::api;
use ultima_controller::client::Client;
use ultima_controller::job::{JobSpec, WrittenJob};

use super::desired::not_as_asked;
use super::refusal;
use crate::exit::{Exit, HalfDone};

/// Creates `specs`, the jobs of the files `written`.
///
/// # Errors
/// The controller rejects a job, with the place in its file; or it ignores a field, as a controller of another version may.
pub async fn create(
    client: &Client,
    written: &[WrittenJob],
    specs: &[JobSpec],
) -> Result<Vec<api::Job>> {
    let created = match specs {
        [] => return Ok(Vec::new()),
        // A single job has a shorter timeout than a batch.
        [spec] => client.create_job(spec).await.map(|job| vec![job]),
        specs => client.create_jobs(specs).await,
    };
    let created = created.map_err(|error| refusal::placed_of_several(written, specs, error))?;
    let Some(why) = not_as_asked(written, specs, &created) else {
        return Ok(created);
    };
    let (mut left, mut problem) = (Vec::new(), None);
    for job in &created {
        if let Err(error) = client.delete_job(&job.name).await {
            left.push(job.name.as_str());
            problem = Some(error);
        }
    }
    if let Some(error) = problem {
        let left = left.join(", ");
        return Err(error).with_context(|| HalfDone(format!("{why}; not deleted again: {left}")));
    }
    let why = format!("{why}; it has another version, and no job was created");
    Err(Exit::Rejected.because(why).into())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll};

    use futures_util::future::{BoxFuture, FutureExt as _, Ready, ready};
    use tokio::net::TcpListener;
    use tonic::body::Body;
    use tonic::codegen::{Service, http};
    use tonic::server::{Grpc, NamedService, UnaryService};
    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;
    use tonic::{Request, Response, Status};
    use tonic_prost::ProstCodec;
    use ultima_controller::api::control_server::SERVICE_NAME;
    use ultima_controller::job;

    use super::*;

    /// A controller of an older version, which ignores `sealed`. With `keeps_jobs` it cannot delete jobs.
    #[derive(Clone, Default)]
    struct Older {
        jobs: Arc<Mutex<Vec<String>>>,
        keeps_jobs: bool,
    }

    impl NamedService for Older {
        const NAME: &'static str = SERVICE_NAME;
    }

    impl UnaryService<api::CreateJobRequest> for Older {
        type Response = api::Job;
        type Future = Ready<Result<Response<api::Job>, Status>>;

        fn call(&mut self, request: Request<api::CreateJobRequest>) -> Self::Future {
            let asked = request.into_inner();
            self.jobs.lock().unwrap().push(asked.name.clone());
            let member = |host: String| api::Member {
                host,
                ..api::Member::default()
            };
            ready(Ok(Response::new(api::Job {
                name: asked.name,
                members: asked.members.into_iter().map(member).collect(),
                gather: asked.gather,
                loss_threshold: asked.loss_threshold.unwrap_or(1),
                weight: asked.weight.unwrap_or(1),
                evict_after_s: asked.evict_after_s,
                ..api::Job::default()
            })))
        }
    }

    impl UnaryService<api::DeleteJobRequest> for Older {
        type Response = api::DeleteJobResponse;
        type Future = Ready<Result<Response<api::DeleteJobResponse>, Status>>;

        fn call(&mut self, request: Request<api::DeleteJobRequest>) -> Self::Future {
            if self.keeps_jobs {
                return ready(Err(Status::internal("its store fails")));
            }
            let name = request.into_inner().name;
            self.jobs.lock().unwrap().retain(|it| *it != name);
            ready(Ok(Response::new(api::DeleteJobResponse::default())))
        }
    }

    impl Service<http::Request<Body>> for Older {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let older = self.clone();
            async move {
                Ok(match request.uri().path().rsplit('/').next() {
                    Some("CreateJob") => {
                        let codec = ProstCodec::<api::Job, api::CreateJobRequest>::default();
                        Grpc::new(codec).unary(older, request).await
                    }
                    Some("DeleteJob") => {
                        let codec =
                            ProstCodec::<api::DeleteJobResponse, api::DeleteJobRequest>::default();
                        Grpc::new(codec).unary(older, request).await
                    }
                    other => panic!("unexpected call of {other:?}"),
                })
            }
            .boxed()
        }
    }

    /// Creates the job in `text` at `older`.
    async fn created(older: &Older, text: &str) -> Result<Vec<api::Job>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let server = Server::builder().add_service(older.clone());
        let serving = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        let client = Client::connect(&address).await?;
        let written = job::parse_all(text, "job.yaml")?;
        let specs: Vec<JobSpec> = written.iter().flat_map(|it| it.request.jobs(7)).collect();
        let created = create(&client, &written, &specs).await;
        serving.abort();
        created
    }

    const SEALED: &str = "name: train\nmembers: [h1, h2]\nsealed: true\n";

    #[tokio::test]
    async fn a_job_that_is_not_sealed_as_requested_is_deleted_again() {
        let older = Older::default();
        let error = created(&older, SEALED).await.unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "job.yaml:3:9: sealed: the controller ignored this field: false instead of true; \
             it has another version, and no job was created"
        );
        assert_eq!(Exit::of(&error), Exit::Rejected);
        assert_eq!(*older.jobs.lock().unwrap(), [""; 0]);

        // Fields that it knows take effect.
        let open = SEALED.replace("sealed: true\n", "weight: 3\n");
        let jobs = created(&older, &open).await.unwrap();
        assert_eq!(jobs[0].weight, 3);
        assert_eq!(*older.jobs.lock().unwrap(), ["train"]);
    }

    #[tokio::test]
    async fn a_job_that_cannot_be_deleted_again_is_reported() {
        let older = Older {
            keeps_jobs: true,
            ..Older::default()
        };
        let error = created(&older, SEALED).await.unwrap_err();
        let said = format!("{error:#}");
        assert!(said.contains("sealed: the controller ignored this field"));
        assert!(said.contains("not deleted again: train: "), "{said}");
        assert_eq!(Exit::of(&error), Exit::Failure);
    }
}
