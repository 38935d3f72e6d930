//! Members of a job at work on a fabric of embedded switches: collectives that take part in checks.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use ultima_agent::{Membership, Probes};
use ultima_controller::api::CheckJobResponse;
use ultima_controller::attend::Fixed;
use ultima_controller::client::Client;
use ultima_host::{CheckPacket, Collective, Destination, OperationId};

use crate::controller::Controller;
use crate::fabric::{Fabric, HostId};
use crate::host_end;
use crate::job::Job;
use crate::operator::Operator;
use crate::testbed::Testbed;

/// How long members may take until all are there.
const PATIENCE: Duration = Duration::from_secs(20);

/// A job with a member at work for each of its ranks, one a host.
pub struct Crew {
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
    attending: JoinHandle<()>,
    /// The far end of a link that is not plugged in.
    _unplugged: Option<OwnedFd>,
}

impl Crew {
    /// Starts switches, a controller, the job `name` of `members` in rank order, and them. The links of the
    /// hosts in `unplugged` end nowhere.
    ///
    /// # Panics
    /// If anything does not start.
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
        let mut crew = Self {
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
                    let (near, far) = host_end::sockets().expect("descriptors are left");
                    (near, Some(far))
                }
                false => (end, None),
            };
            let (member, here) = crew.join(*host, end, far);
            crew.members.push(Some(member));
            all_here = Some(here);
        }
        let mut here = all_here.expect("a job has members");
        let waited = crew.testbed.runtime.block_on(async {
            timeout(PATIENCE, here.wait_for(|here| *here))
                .await
                .map(|here| here.is_ok())
        });
        assert_eq!(waited, Ok(true), "all members attend");
        crew
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
        let attendance = membership.attendance(config.slot_bytes);
        let collective = Collective::over_port(config, membership.port(end));
        let collective = collective.unwrap_or_else(|error| panic!("{error}"));
        let mut probes = Probes::new(collective.prober());
        let here = probes.all_here();
        let client = self.client.clone();
        let attending = self.testbed.runtime.spawn(async move {
            // It ends with the test.
            let _ = client
                .attend(attendance, &mut probes, &mut Fixed::default())
                .await;
        });
        let member = Member {
            collective,
            attending,
            _unplugged: unplugged,
        };
        (member, here)
    }

    /// Ends a member as a crash would: without a word to the controller.
    ///
    /// # Panics
    /// If it has ended.
    pub fn kill(&mut self, rank: u16) {
        let member = self.members[usize::from(rank)].take().expect("it is there");
        member.attending.abort();
        drop(member.collective);
    }

    /// What a check finds while some rank sends packets to another all the time, as many as a thousand a second.
    ///
    /// # Panics
    /// If the controller refuses, or that rank has ended.
    pub fn check_amid_traffic(&self, from: u16, to: u16) -> CheckJobResponse {
        let member = self.members[usize::from(from)]
            .as_ref()
            .expect("it is there");
        let prober = member.collective.prober();
        let packet = CheckPacket {
            to: Destination::Rank(to),
            probe: false,
            about: OperationId::default(),
            // No round's: the receiver forgets it.
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

    /// Lets an operator break something at a switch.
    ///
    /// # Panics
    /// If the switch refuses.
    pub fn sabotage(&self, switch: usize, work: impl AsyncFnOnce(&Operator, &Fabric, &Job)) {
        self.usurp(switch, |operator| {
            let work = work(operator, &self.testbed.fabric, &self.job);
            self.testbed.runtime.block_on(work);
        });
    }

    /// What a check finds while the controller is not a switch's primary.
    ///
    /// # Panics
    /// If the controller refuses.
    pub fn check_without(&self, switch: usize) -> CheckJobResponse {
        self.usurp(switch, |_| self.check())
    }

    /// Does something while an operator is a switch's primary in the controller's place.
    fn usurp<T>(&self, switch: usize, work: impl FnOnce(&Operator) -> T) -> T {
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

    /// What a check finds.
    ///
    /// # Panics
    /// If the controller refuses.
    pub fn check(&self) -> CheckJobResponse {
        let check = self.testbed.runtime.block_on(self.client.check(&self.name));
        check.unwrap_or_else(|error| panic!("{error}"))
    }
}
