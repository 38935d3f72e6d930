//! A lab for measurements: its fabric, the settings of its links, and its counters.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::sync::{mpsc, oneshot};
use tonic::transport::Channel;
use ultima_api::client::Client;
use ultima_grpc::transport::endpoint;
use ultima_lab::{Cancel, LabName, Programs, SwitchKind};
use ultima_planner::job::JobSpec;
use ultima_switch::link::PORT_A;
use ultima_switch::proto::port_statistics_client::PortStatisticsClient;
use ultima_switch::proto::traffic_manager_client::TrafficManagerClient;
use ultima_switch::proto::{Change, Count, GetRequest, SetSettingsRequest};
use ultima_switch::tm::{Background, WireChange};
use ultima_switch::units::show_duration;

use super::method::Method;
use super::plan::LabPlan;

/// The switch's name in the fabric.
const SWITCH: &str = "s1";

/// Lost packets by place and cause.
pub type Losses = BTreeMap<String, u64>;

/// The name of a rank's host.
pub fn host(rank: u16) -> String {
    format!("h{}", rank + 1)
}

/// The address of a rank's host.
pub fn address(rank: u16) -> String {
    format!("10.0.0.{}", rank + 1)
}

fn fabric(plan: &LabPlan) -> String {
    let ranks = 0..plan.ranks;
    let hosts: String = (ranks.clone())
        .map(|rank| {
            let (name, ip, mac) = (host(rank), address(rank), rank + 1);
            format!("  - {{ name: {name}, mac: '02:00:00:00:00:{mac:02x}', ip: {ip} }}\n")
        })
        .collect();
    let rate = plan
        .rate
        .map(|rate| format!(", rate: '{rate}'"))
        .unwrap_or_default();
    let links: String = ranks
        .map(|rank| {
            format!(
                "  - {{ ends: [{}, {SWITCH}/{}], mtu: {}{rate} }}\n",
                host(rank),
                rank + 1,
                plan.mtu
            )
        })
        .collect();
    format!("switches: [{{ name: {SWITCH} }}]\nhosts:\n{hosts}links:\n{links}")
}

/// Creates the lab of a plan. Blocks.
///
/// # Errors
/// As [`ultima_lab::up`].
pub fn up(
    name: &LabName,
    plan: &LabPlan,
    switch: SwitchKind,
    cancel: &Cancel,
) -> Result<ultima_lab::Plan> {
    let ultima = std::env::current_exe().context("cannot determine the path of this program")?;
    let programs = Programs { ultima, switch };
    let made = ultima_lab::up(
        name,
        Path::new("bench.yaml"),
        &fabric(plan),
        &programs,
        cancel,
    )?;
    Ok(made)
}

/// The state of all links.
#[derive(Clone, Copy, Debug, Default)]
pub struct Links {
    /// One-way delay.
    pub delay: Duration,
    /// Background flows toward the hosts.
    pub background: Option<Background>,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
}

impl Links {
    /// The same links, with nothing but the job's traffic.
    pub fn without_traffic(self) -> Links {
        Links {
            background: None,
            ..self
        }
    }
}

/// A running lab.
pub struct Bed {
    client: Client,
    network: mpsc::Sender<Request>,
    /// Ultima's jobs, in the order of their creation.
    jobs: Vec<String>,
    /// Numbers jobs, so that no name is used twice.
    numbers: u32,
    ranks: u16,
}

/// A request to the thread in the switches' namespace, with the channel for its answer.
enum Request {
    Set(Box<[WireChange; 2]>, oneshot::Sender<Result<()>>),
    Count(oneshot::Sender<Result<Losses>>),
}

impl Bed {
    /// Connects to a lab's controller, and to its wires and switch.
    ///
    /// # Errors
    /// One of them does not answer.
    pub async fn connect(
        name: &LabName,
        plan: &ultima_lab::Plan,
        switch: SwitchKind,
    ) -> Result<Bed> {
        let client = Client::connect(&ultima_lab::controller_address(name)).await?;
        let wires = plan.links.iter().filter_map(|link| link.wire.as_ref());
        let mut addresses: Vec<_> = wires.map(|wire| ("link", wire.grpc)).collect();
        if switch == SwitchKind::Embedded {
            addresses.extend(plan.switches.iter().map(|switch| ("switch", switch.grpc)));
        }
        let (network, mut requests) = mpsc::channel::<Request>(1);
        let (started, ready) = oneshot::channel();
        let name = name.clone();
        // Sockets belong to the namespace of the thread that opens them.
        thread::spawn(move || {
            let enter = || {
                ultima_lab::enter(&name, SWITCH)?;
                anyhow::Ok(crate::runtime::runtime()?)
            };
            let runtime = match enter() {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error))),
            };
            runtime.block_on(async {
                let mut servers = Vec::new();
                for (kind, address) in addresses {
                    match connect(&address.to_string()).await {
                        Ok(channel) => servers.push((kind, channel)),
                        Err(error) => return drop(started.send(Err(error))),
                    }
                }
                let _ = started.send(Ok(()));
                // The receiver of an answer is gone after an interrupt.
                while let Some(request) = requests.recv().await {
                    match request {
                        Request::Set(changes, answer) => {
                            drop(answer.send(set(&servers, &changes).await));
                        }
                        Request::Count(answer) => drop(answer.send(count(&servers).await)),
                    }
                }
            });
        });
        ready.await.map_err(|_| gone())??;
        let ranks = u16::try_from(plan.hosts.len())?;
        Ok(Bed {
            client,
            network,
            jobs: Vec::new(),
            numbers: 0,
            ranks,
        })
    }

    /// Sets the state of all links.
    ///
    /// # Errors
    /// A link does not take it.
    pub async fn set(&self, links: Links) -> Result<()> {
        let none = || "none".to_owned();
        let loss = match links.loss > 0.0 {
            true => links.loss.to_string(),
            false => none(),
        };
        let (mut both, mut to_host) = (WireChange::default(), WireChange::default());
        both.set("delay", &show_duration(links.delay))?;
        both.set("loss", &loss)?;
        let background = links.background.map_or_else(none, |it| it.to_string());
        to_host.set("background", &background)?;
        let (answer, answered) = oneshot::channel();
        let sent = self
            .network
            .send(Request::Set(Box::new([both, to_host]), answer))
            .await;
        sent.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// The packets lost in the lab so far, and those that the switch trimmed or dropped of Ultima's job number `job`,
    /// from 0.
    ///
    /// # Errors
    /// A link, the switch or the controller does not answer.
    pub async fn losses(&self, method: Method, job: usize) -> Result<Losses> {
        let job = self.jobs.get(job).filter(|_| method.is_ultima());
        let (answer, answered) = oneshot::channel();
        let sent = self.network.send(Request::Count(answer)).await;
        sent.map_err(|_| gone())?;
        let mut losses = answered.await.map_err(|_| gone())??;
        if let Some(job) = job {
            for switch in self.client.counters(job).await? {
                for (cause, count) in [
                    ("trimmed", switch.trimmed),
                    ("late", switch.late),
                    ("rejected", switch.rejected),
                    ("no path", switch.undeliverable),
                ] {
                    let packets = count.map_or(0, |it| it.packets);
                    losses.insert(format!("switch: {cause}"), packets);
                }
            }
        }
        Ok(losses)
    }

    /// Creates a job of all hosts; returns its name.
    ///
    /// # Errors
    /// The controller rejects it.
    pub async fn create_job(&mut self) -> Result<String> {
        self.numbers += 1;
        let name = format!("bench{}", self.numbers);
        let spec = JobSpec::new(&name, (0..self.ranks).map(host));
        self.client.create_job(&spec).await?;
        self.jobs.push(name.clone());
        Ok(name)
    }

    /// Deletes all jobs.
    ///
    /// # Errors
    /// The controller does not answer.
    pub async fn delete_jobs(&mut self) -> Result<()> {
        while let Some(job) = self.jobs.pop() {
            self.client.delete_job(&job).await?;
        }
        Ok(())
    }
}

fn gone() -> anyhow::Error {
    anyhow!("internal error: the thread in the lab's namespace has ended")
}

async fn connect(address: &str) -> Result<Channel> {
    let channel = endpoint(address, None)?.connect().await;
    channel.with_context(|| format!("nothing answers at {address} in the lab"))
}

/// Applies the first change to both directions of all links, and the second one to those toward hosts.
async fn set(servers: &[(&str, Channel)], [both, to_host]: &[WireChange; 2]) -> Result<()> {
    for (_, channel) in servers.iter().filter(|(kind, _)| *kind == "link") {
        let change = |change: &WireChange, ports| Change {
            ports,
            settings: change.to_string(),
        };
        let changes = vec![
            change(both, Vec::new()),
            change(to_host, vec![u32::from(PORT_A)]),
        ];
        let request = SetSettingsRequest {
            device_id: 0,
            changes,
        };
        let mut client = TrafficManagerClient::new(channel.clone());
        client.set(request).await.context("cannot set a link")?;
    }
    Ok(())
}

async fn count(servers: &[(&str, Channel)]) -> Result<Losses> {
    let mut losses = Losses::new();
    for (kind, channel) in servers {
        let mut client = PortStatisticsClient::new(channel.clone());
        let answer = client.get(GetRequest { device_id: 0 }).await;
        let answer = answer.with_context(|| format!("cannot read the counters of a {kind}"))?;
        for port in answer.into_inner().ports {
            let drops = port.drops.unwrap_or_default();
            for (cause, count) in [
                ("loss", &drops.wire),
                ("queue", &drops.queue),
                ("overrun", &port.overrun),
            ] {
                let packets = count.as_ref().map_or(0, |it: &Count| it.packets);
                if packets > 0 {
                    *losses.entry(format!("{kind}: {cause}")).or_default() += packets;
                }
            }
        }
    }
    Ok(losses)
}
