//! The running members of a job on a fabric of embedded switches, which take part in checks.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use ultima_agent::{Membership, Probes};
use ultima_api::client::Client;
use ultima_api::member_session::Fixed;
use ultima_api::v1::CheckJobResponse;
use ultima_host::{CheckPacket, Collective, Destination, OperationId};

use ultima_tests::controller::Controller;
use ultima_tests::fabric::{Fabric, HostId};
use ultima_tests::host_end::sockets;
use ultima_tests::job::Job;
use ultima_tests::operator::Operator;
use ultima_tests::testbed::Testbed;

/// The deadline for all members to join.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A job with a running member for each rank, one per host.
pub struct RunningJob {
    /// The job.
    pub job: Job,
    name: String,
    members: Vec<Option<Member>>,
    client: Client,
    controller: Controller,
    testbed: Testbed,
}

struct Member {
    collective: Collective,
    session: JoinHandle<()>,
    /// The far end of an unplugged link.
    _unplugged: Option<OwnedFd>,
}

impl RunningJob {
    /// Starts switches, a controller, the job `name`, and its members in rank order. The links of hosts in `unplugged` are not
    /// connected to a switch.
    ///
    /// # Panics
    /// If one of them does not start.
    pub fn start(fabric: Fabric, name: &str, members: &[HostId], unplugged: &[HostId]) -> Self {
        let (testbed, ends) = Testbed::of_embedded_with_hosts(fabric);
        let controller = Controller::start(&testbed);
        let hosts: Vec<&str> = members
            .iter()
            .map(|host| testbed.fabric.host(*host).name.as_str())
            .collect();
        let yaml = format!("{{ name: {name}, members: [{}] }}", hosts.join(", "));
        let job = controller.create(&testbed, &yaml);
        let client = controller.client();
        let mut ends: Vec<Option<OwnedFd>> = ends.into_iter().map(Some).collect();
        let mut running = Self {
            job,
            name: name.to_owned(),
            members: Vec::new(),
            client,
            controller,
            testbed,
        };
        let mut all_here = None;
        for host in members {
            let end = ends[host.0].take().expect("one rank a host");
            let (end, far) = match unplugged.contains(host) {
                true => {
                    let (near, far) = sockets().expect("descriptors are left");
                    (near, Some(far))
                }
                false => (end, None),
            };
            let (member, all_joined) = running.join(*host, end, far);
            running.members.push(Some(member));
            all_here = Some(all_joined);
        }
        let mut all_joined = all_here.expect("a job has members");
        let waited = running.testbed.runtime.block_on(async {
            timeout(TIMEOUT, all_joined.wait_for(|all_joined| *all_joined))
                .await
                .map(|all_joined| all_joined.is_ok())
        });
        assert_eq!(waited, Ok(true), "all members attend");
        running
    }

    fn join(
        &self,
        host: HostId,
        end: OwnedFd,
        unplugged: Option<OwnedFd>,
    ) -> (Member, tokio::sync::watch::Receiver<bool>) {
        let host = &self.testbed.fabric.host(host).name;
        let joined = Membership::join(&self.client, &self.name, host, Duration::ZERO);
        let membership = self.testbed.runtime.block_on(joined);
        let membership = membership.unwrap_or_else(|error| panic!("{error}"));
        let config = membership.config(Duration::from_millis(200));
        let attendance = membership.attendance(&config);
        let collective = Collective::over_port(config, membership.port(end));
        let collective = collective.unwrap_or_else(|error| panic!("{error}"));
        let mut probes = Probes::new(collective.prober());
        let all_joined = probes.all_here();
        let client = self.client.clone();
        let session = self.testbed.runtime.spawn(async move {
            // The session ends with the test.
            let _ = client
                .attend(attendance, &mut probes, &mut Fixed::default())
                .await;
        });
        let member = Member {
            collective,
            session,
            _unplugged: unplugged,
        };
        (member, all_joined)
    }

    /// Ends a member without a message to the controller, as a crash does.
    ///
    /// # Panics
    /// If the member has ended.
    pub fn kill(&mut self, rank: u16) {
        let member = self.members[usize::from(rank)].take().expect("it is there");
        member.session.abort();
        drop(member.collective);
    }

    /// Checks the job while a rank sends up to a thousand packets a second to another.
    ///
    /// # Panics
    /// If the controller rejects the check, or the rank has ended.
    pub fn check_with_traffic(&self, from: u16, to: u16) -> CheckJobResponse {
        let member = self.members[usize::from(from)]
            .as_ref()
            .expect("it is there");
        let prober = member.collective.prober();
        let packet = CheckPacket {
            to: Destination::Rank(to),
            probe: false,
            about: OperationId::default(),
            // The token of no round, so that the receiver ignores it.
            token: 0,
            payload: 1000,
        };
        let traffic = self.testbed.runtime.spawn(async move {
            loop {
                prober.send(vec![packet]).expect("it runs");
                sleep(Duration::from_millis(1)).await;
            }
        });
        let check = self.check();
        assert!(!traffic.is_finished());
        traffic.abort();
        check
    }

    /// Lets an operator change a switch.
    ///
    /// # Panics
    /// If the switch rejects the change.
    pub fn change_switch(&self, switch: usize, work: impl AsyncFnOnce(&Operator, &Fabric, &Job)) {
        self.as_primary(switch, |operator| {
            let work = work(operator, &self.testbed.fabric, &self.job);
            self.testbed.runtime.block_on(work);
        });
    }

    /// Checks the job while the controller is not the primary of a switch.
    ///
    /// # Panics
    /// If the controller rejects the check.
    pub fn check_without_primary(&self, switch: usize) -> CheckJobResponse {
        self.as_primary(switch, |_| self.check())
    }

    /// Makes an operator the primary of a switch for the time of `work`.
    fn as_primary<T>(&self, switch: usize, work: impl FnOnce(&Operator) -> T) -> T {
        let grpc = self.testbed.grpc()[switch];
        let operator = self.testbed.runtime.block_on(Operator::at(switch, grpc));
        self.controller
            .wait_until_connected(&self.testbed, switch, false);
        let done = work(&operator);
        drop(operator);
        self.controller
            .wait_until_connected(&self.testbed, switch, true);
        done
    }

    /// Checks the job.
    ///
    /// # Panics
    /// If the controller rejects the check.
    pub fn check(&self) -> CheckJobResponse {
        let check = self.testbed.runtime.block_on(self.client.check(&self.name));
        check.unwrap_or_else(|error| panic!("{error}"))
    }
}
