//! A running controller of a testbed, with a fabric and jobs from YAML and requests over the control API.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use ultima_api::client::{Client, ClientError};
use ultima_api::v1 as api;
use ultima_api::v1::membership_event::Kind;
use ultima_controller::server::{self, Config, Handle, ServeError};
use ultima_planner::job::JobRequest;
use ultima_planner::{fabric, job};
use ultima_wire::group_address;

use crate::fabric::{Fabric, HostId, switch_name};
use crate::job::{Job, Member};
use crate::testbed::Testbed;

/// One of the two jobs of scenarios for one switch.
pub const LEFT: &str = "{ name: left, members: [h1, h1, h2, h3] }";
/// The other job of these scenarios.
pub const RIGHT: &str = "{ name: right, members: [h2, h4] }";
/// [`RIGHT`] without a group.
pub const RIGHT_BY_UNICAST: &str = "{ name: right, members: [h2, h4], gather: unicast }";
/// A job across two switches.
pub const ACROSS: &str = "{ name: across, members: [h1, h1, h2, h3, h4, h3] }";

/// The deadline for the controller to detect a change, and for a switch to accept a new controller.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The controller of a testbed.
pub struct Controller {
    client: Client,
    /// Dropping it ends the controller; the switches keep their entries.
    server: Handle,
}

impl Controller {
    /// Starts a controller, which installs the program and the fabric's routes on all switches.
    ///
    /// # Panics
    /// If the controller does not start.
    pub fn start(testbed: &Testbed) -> Self {
        Self::try_start(testbed, false).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`start`](Self::start). Replaces other programs than Ultima's only if `replace_pipeline`.
    ///
    /// # Errors
    /// The controller does not start.
    pub fn try_start(testbed: &Testbed, replace_pipeline: bool) -> Result<Self, ServeError> {
        testbed
            .runtime
            .block_on(Self::serve(testbed, replace_pipeline))
    }

    /// Ends the controller and starts another at once, while switches may still have the first as primary.
    ///
    /// # Panics
    /// If the new controller does not start.
    pub fn replace(self, testbed: &Testbed) -> Self {
        testbed.runtime.block_on(self.server.stop());
        Self::start(testbed)
    }

    async fn serve(testbed: &Testbed, replace_pipeline: bool) -> Result<Self, ServeError> {
        let yaml = testbed.fabric.yaml(&testbed.grpc());
        let fabric = fabric::parse(&yaml, "fabric.yaml").unwrap_or_else(|error| panic!("{error}"));
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = server::serve(Config {
            listen: listen.into(),
            // The controller does not repair what an operator changes.
            repair: false,
            replace_pipeline,
            ..Config::new(fabric)?
        })
        .await?;
        let client = Client::connect(&server.address().to_string()).await;
        Ok(Self {
            client: client.unwrap_or_else(|error| panic!("{error}")),
            server,
        })
    }

    /// The address of its control API.
    pub fn address(&self) -> String {
        self.server.address().to_string()
    }

    /// A client of the controller.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Creates the job in `yaml`, and waits until it is ready.
    ///
    /// # Panics
    /// If the controller rejects the request, or the job is not ready in ten seconds.
    pub fn create(&self, testbed: &Testbed, yaml: &str) -> Job {
        self.create_until(testbed, yaml, |job| job.ready)
    }

    /// Creates the job in `yaml`, and waits until `condition` holds for it.
    ///
    /// # Panics
    /// If the controller rejects the request, or `condition` does not hold after ten seconds.
    pub fn create_until(
        &self,
        testbed: &Testbed,
        yaml: &str,
        condition: impl Fn(&api::Job) -> bool,
    ) -> Job {
        let request = job::parse(yaml, "job.yaml").unwrap_or_else(|error| panic!("{error}"));
        let JobRequest::Job(spec) = request else {
            panic!("one job is created here: {yaml}")
        };
        let mut request = api::CreateJobRequest::from(&spec);
        request.wait_ms = Some(0);
        let created = testbed.runtime.block_on(self.client.create_job(request));
        let created = created.unwrap_or_else(|error| panic!("{error}"));
        self.job_when(testbed, &created.name, condition)
    }

    /// Waits until `condition` holds for a job.
    ///
    /// # Panics
    /// If there is no such job, or `condition` does not hold after ten seconds.
    pub fn job_when(
        &self,
        testbed: &Testbed,
        name: &str,
        condition: impl Fn(&api::Job) -> bool,
    ) -> Job {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let job = testbed.runtime.block_on(self.client.job(name));
            let job = job.unwrap_or_else(|error| panic!("{error}"));
            if condition(&job) {
                return as_installed(&testbed.fabric, &job);
            }
            assert!(Instant::now() < until, "{job:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The controller's counters of a job, in the order of switches.
    ///
    /// # Panics
    /// If the controller rejects the request.
    pub fn counters(&self, testbed: &Testbed, job: &str) -> Vec<api::SwitchCounters> {
        let read = testbed.runtime.block_on(self.client.counters(job));
        read.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The controller's telemetry of a job, when switches have reported at least `operations` operations.
    ///
    /// # Panics
    /// If the controller rejects the request, or has fewer reports after ten seconds.
    pub fn telemetry(
        &self,
        testbed: &Testbed,
        job: &str,
        operations: usize,
    ) -> api::GetTelemetryResponse {
        let known = async {
            loop {
                let read = self.client.telemetry(job).await;
                let telemetry = read.unwrap_or_else(|error| panic!("{error}"));
                if telemetry.losses.len() >= operations {
                    break telemetry;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = testbed
            .runtime
            .block_on(async { timeout(TIMEOUT, known).await });
        waited.expect("switches report losses to the controller")
    }

    /// Waits until the controller is a switch's primary, or is no longer.
    ///
    /// # Panics
    /// If that takes more than ten seconds.
    pub fn wait_until_connected(&self, testbed: &Testbed, switch: usize, connected: bool) {
        let known = async {
            loop {
                let switches = self.client.switches().await;
                let switches = switches.unwrap_or_else(|error| panic!("{error}"));
                if switches[switch].connected == connected {
                    break;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = testbed
            .runtime
            .block_on(async { timeout(TIMEOUT, known).await });
        waited.expect("the controller gets the arbitration update");
    }

    /// Changes the members of a job that no member has joined, and waits until the switches have dropped the old epoch.
    ///
    /// # Panics
    /// If the controller rejects the change, or it takes more than ten seconds.
    pub fn resize(&self, testbed: &Testbed, name: &str, members: &[&str]) -> Job {
        let members: Vec<String> = members.iter().map(|host| (*host).into()).collect();
        let resized = async {
            let mut watch = self.client.watch_job(name).await?;
            self.client
                .resize_job(name, None, &members, TIMEOUT, false)
                .await?;
            while let Some(next) = watch.next().await? {
                if next.event.is_some_and(|event| event.kind() == Kind::Fenced) {
                    break;
                }
            }
            self.client.job(name).await
        };
        let waited = testbed
            .runtime
            .block_on(async { timeout(TIMEOUT, resized).await });
        let job = waited.expect("the switches drop the old epoch");
        let job = job.unwrap_or_else(|error: ClientError| panic!("{error}"));
        as_installed(&testbed.fabric, &job)
    }

    /// Deletes a job.
    ///
    /// # Panics
    /// If the controller rejects the request.
    pub fn delete(&self, testbed: &Testbed, name: &str) {
        let deleted = testbed.runtime.block_on(self.client.delete_job(name));
        deleted.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn as_installed(fabric: &Fabric, job: &api::Job) -> Job {
    let switch = |name: &str| {
        (0..fabric.switches)
            .find(|switch| switch_name(*switch) == name)
            .expect("a switch of the fabric")
    };
    let number = |number: u32| u16::try_from(number).expect("it has 16 bits in packets");
    let members = job.members.iter().map(|member| {
        let host = fabric
            .hosts
            .iter()
            .position(|host| host.name == member.host);
        Member {
            host: HostId(host.expect("a host of the fabric")),
            source: member.source_index,
            mac: member.mac.parse().expect("a MAC address"),
            address: format!("{}:{}", member.ip, member.udp_port)
                .parse()
                .expect("an address"),
        }
    });
    Job {
        id: number(job.id),
        epoch: number(job.epoch),
        counter: job.counter_index,
        group: job.group_id,
        group_address: if job.group_address.is_empty() {
            group_address(number(job.id))
        } else {
            job.group_address.parse().expect("an IPv4 address")
        },
        members: members.collect(),
        shares: (job.shares.iter())
            .map(|share| ((switch(&share.switch), number(share.port)), share.index))
            .collect(),
    }
}
