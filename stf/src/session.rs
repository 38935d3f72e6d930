//! Runs a test's lines against a target.

use std::collections::{BTreeMap, HashMap};

use num_bigint::BigUint;
use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::names::{IndexError, Names, Table};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::{
    self, CounterData, DirectCounterEntry, MeterConfig, P4Data, RegisterEntry, TableEntry, Update,
};

use super::client::ClientError;
use super::ends::{EndError, Frames};
use super::entry::{self, BuildError, Hit};
use super::literal::bytestring;
use super::lookup::{self, LookupError};
use super::pattern::{Pattern, hex};
use super::replication::{PieceError, Pieces};
use super::script::{Call, Cell, Check, Command, Rates, Step};
use super::target::Bench;

/// Why a test fails at a line.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// An unknown or ambiguous name.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// An invalid entry.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// An invalid group or session.
    #[error(transparent)]
    Piece(#[from] PieceError),
    /// There is no such cell.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The target rejects a request.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Frames cannot be sent or received.
    #[error(transparent)]
    End(#[from] EndError),
    /// The P4Info does not have the table's action profile.
    #[error("P4Info does not have the action profile of table {0}")]
    NoProfile(String),
    /// No entry was added under this name.
    #[error("there is no entry {0}")]
    NoEntry(String),
    /// The counter is not of the entry's table.
    #[error("counter {counter} is not a counter of entry {entry}'s table")]
    NotItsCounter {
        /// The counter.
        counter: String,
        /// The entry.
        entry: String,
    },
    /// A read has an unexpected result.
    #[error("the read returned {0} entities, expected one of the requested kind")]
    Answer(usize),
    /// A counter has an unexpected value.
    #[error("counter {counter} is {packets} packets, {bytes} bytes")]
    Count {
        /// The counter.
        counter: String,
        /// Its packets.
        packets: i64,
        /// Its bytes.
        bytes: i64,
    },
    /// Too few or too many frames.
    #[error("port {port}: {got} frames, expected {expected}{}", first(.frame))]
    Frames {
        /// The port.
        port: u16,
        /// Number of received frames.
        got: usize,
        /// Number of expected frames.
        expected: usize,
        /// The first unexpected frame.
        frame: Option<Vec<u8>>,
    },
    /// A frame differs from its pattern.
    #[error("port {port}: {difference}: expected {pattern}, got {}", hex(.frame))]
    Frame {
        /// The port.
        port: u16,
        /// The difference.
        difference: super::pattern::Mismatch,
        /// The pattern.
        pattern: Pattern,
        /// The frame.
        frame: Vec<u8>,
    },
}

fn first(frame: &Option<Vec<u8>>) -> String {
    frame.as_ref().map_or(String::new(), |frame| {
        format!("; the first unexpected one: {}", hex(frame))
    })
}

impl StepError {
    /// True if this target or setup lacks a feature or port.
    pub fn is_beyond_target(&self) -> bool {
        match self {
            StepError::Client(error) => error.is_unimplemented(),
            StepError::End(error) => {
                matches!(error, EndError::NoPort(_) | EndError::TooShort(_))
            }
            _ => false,
        }
    }
}

/// The failure of a test. The error is boxed because it is large.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {error}")]
pub struct Failure {
    /// The test's line, from 1.
    pub line: usize,
    /// The error.
    pub error: Box<StepError>,
}

impl Failure {
    fn new(line: usize, error: StepError) -> Failure {
        Failure {
            line,
            error: Box::new(error),
        }
    }
}

/// Expected frames by port, in order, with the lines of the script.
type Expected = BTreeMap<u16, Vec<(usize, Option<Pattern>)>>;

/// A test under way.
pub struct Session<'a> {
    bench: Bench<'a>,
    names: &'a Names,
    p4info: &'a P4Info,
    entries: Vec<TableEntry>,
    /// Members of action profiles so far.
    members: u32,
    by_id: HashMap<String, TableEntry>,
    pieces: Pieces,
    groups: BTreeMap<u32, v1::MulticastGroupEntry>,
    sessions: BTreeMap<u32, v1::CloneSessionEntry>,
    expected: Expected,
    received: Frames,
    /// The port that the frames under way entered at, if there may be some.
    busy: Option<u16>,
}

impl<'a> Session<'a> {
    /// On a target that has the test's program.
    pub fn new(bench: Bench<'a>, names: &'a Names, p4info: &'a P4Info) -> Self {
        Session {
            bench,
            names,
            p4info,
            entries: Vec::new(),
            members: 0,
            by_id: HashMap::new(),
            pieces: Pieces::default(),
            groups: BTreeMap::new(),
            sessions: BTreeMap::new(),
            expected: Expected::new(),
            received: Frames::new(),
            busy: None,
        }
    }

    /// Runs all lines, then compares what came out. What a program swap may leave in the target is
    /// removed in any case.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn run(mut self, steps: &[Step]) -> Result<(), Failure> {
        let result = self.run_steps(steps).await;
        self.clean_up().await;
        result
    }

    async fn run_steps(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for Step { line, command } in steps {
            // Each line sees what the frames before it have done, and none of those behind it.
            let sends = matches!(command, Command::Packet { .. } | Command::Expect { .. });
            let step = async {
                if !sends {
                    self.settle().await?;
                }
                self.step(*line, command).await
            };
            step.await.map_err(|error| Failure::new(*line, error))?;
        }
        let end = steps.last().map_or(0, |step| step.line);
        // Even where nothing was sent: nothing may come of its own accord either.
        self.busy.get_or_insert_default();
        self.settle()
            .await
            .map_err(|error| Failure::new(end, error))?;
        compare(&self.expected, &self.received, end)
    }

    async fn settle(&mut self) -> Result<(), StepError> {
        if self.busy.take().is_some() {
            self.bench.ends.settle(&mut self.received).await?;
        }
        Ok(())
    }

    async fn step(&mut self, line: usize, command: &Command) -> Result<(), StepError> {
        match command {
            Command::Packet { port, frame } => {
                // No target keeps the order of frames that enter at different ports.
                if self.busy.is_some_and(|busy| busy != *port) {
                    self.settle().await?;
                }
                self.bench.ends.send(*port, frame)?;
                self.busy = Some(*port);
            }
            Command::Expect { port, pattern } => {
                self.bench.ends.check(*port)?;
                let expected = self.expected.entry(*port).or_default();
                expected.push((line, pattern.clone()));
            }
            Command::NoPacket | Command::Wait => {}
            Command::Add {
                table,
                priority,
                key,
                action,
                id,
            } => {
                let table =
                    lookup::find("table", table, self.names.tables.iter(), |one| &one.name)?;
                let hit = match table.is_indirect {
                    false => Hit::Call(action),
                    true => Hit::Member(self.add_member(table, action).await?),
                };
                let entry = entry::added(table, *priority, key, hit)?;
                let client = &mut self.bench.client;
                client.write(Update::insert(entry.clone())).await?;
                if let Some(id) = id {
                    self.by_id.insert(id.clone(), entry.clone());
                }
                self.entries.push(entry);
            }
            Command::SetDefault { table, action } => {
                let table =
                    lookup::find("table", table, self.names.tables.iter(), |one| &one.name)?;
                let entry = entry::default(table, action)?;
                self.bench.client.write(Update::modify(entry)).await?;
            }
            Command::RemoveAll => {
                self.by_id.clear();
                for entry in std::mem::take(&mut self.entries) {
                    self.bench.client.write(Update::delete(entry)).await?;
                }
            }
            Command::CheckCounter {
                counter,
                cell,
                check,
            } => self.check_counter(counter, cell, *check).await?,
            Command::CounterRead(name, index) => {
                self.counter_cell(name, *index).await?;
            }
            Command::CounterWrite(name, index, packet_count, byte_count) => {
                let counter = self.counter(name)?;
                let mut entry = counter.cell(*index)?;
                entry.data = Some(CounterData {
                    packet_count: *packet_count,
                    byte_count: *byte_count,
                });
                self.bench.client.write(Update::modify(entry)).await?;
            }
            Command::RegisterRead(name, index) => {
                let entry = self.register(name)?.cell(*index)?;
                self.read_one(entry).await?;
            }
            Command::RegisterWrite(name, index, value) => {
                let entry = self.register(name)?.cell(*index)?;
                self.write_register(entry, &value.value).await?;
            }
            Command::RegisterReset(name) => {
                let entry = self.register(name)?.cells();
                self.write_register(entry, &BigUint::ZERO).await?;
            }
            Command::MeterRead(name, index) => {
                let entry = self.meter(name)?.cell(*index)?;
                self.read_one(entry).await?;
            }
            Command::MeterWrite(name, index, rates) => {
                let mut entry = self.meter(name)?.cell(*index)?;
                entry.config = Some(meter_config(rates));
                self.bench.client.write(Update::modify(entry)).await?;
            }
            Command::MeterWriteAll(name, rates) => {
                let mut entry = self.meter(name)?.cells();
                entry.config = Some(meter_config(rates));
                self.bench.client.write(Update::modify(entry)).await?;
            }
            Command::MirrorToPort(session, port) => {
                self.pieces.mirror_to_port(*session, *port);
                self.write_pieces().await?;
            }
            Command::MirrorToGroup(session, group) => {
                self.pieces.mirror_to_group(*session, *group);
                self.write_pieces().await?;
            }
            Command::MirrorDelete(session) => {
                self.pieces.delete_mirror(*session)?;
                self.write_pieces().await?;
            }
            Command::MirrorGet(session) => self.pieces.check_mirror(*session)?,
            Command::GroupCreate(group) => {
                self.pieces.create_group(*group);
                self.write_pieces().await?;
            }
            Command::NodeCreate(rid, ports) => self.pieces.create_node(*rid, ports.clone()),
            Command::NodeUpdate(node, ports) => {
                self.pieces.update_node(*node, ports.clone())?;
                self.write_pieces().await?;
            }
            Command::NodeAssociate(group, node) => {
                self.pieces.associate(*group, *node)?;
                self.write_pieces().await?;
            }
        }
        Ok(())
    }

    fn counter(&self, name: &str) -> Result<&'a ultima_p4runtime::names::Counter, LookupError> {
        lookup::find("counter", name, self.names.counters.iter(), |one| &one.name)
    }

    fn meter(&self, name: &str) -> Result<&'a ultima_p4runtime::names::Meter, LookupError> {
        lookup::find("meter", name, self.names.meters.iter(), |one| &one.name)
    }

    fn register(&self, name: &str) -> Result<&'a ultima_p4runtime::names::Register, LookupError> {
        let registers = self.names.registers.iter();
        lookup::find("register", name, registers, |one| &one.name)
    }

    /// A member of its own for an entry of a table with an action profile.
    async fn add_member(&mut self, table: &Table, action: &Call) -> Result<u32, StepError> {
        let described = self.p4info.tables.iter().find(|described| {
            let preamble = described.preamble.as_ref();
            preamble.is_some_and(|preamble| preamble.id == table.id)
        });
        let id = described.map_or(0, |described| described.implementation_id);
        let profile = self.names.action_profiles.by_id(id);
        let profile = profile.ok_or_else(|| StepError::NoProfile(table.name.clone()))?;
        self.members += 1;
        let member = entry::member(profile, self.members, action)?;
        self.bench.client.write(Update::insert(member)).await?;
        Ok(self.members)
    }

    /// Reads what is one entity.
    async fn read_one(&mut self, entity: impl Into<v1::Entity>) -> Result<Entity, StepError> {
        let mut found = self.bench.client.read(entity.into()).await?;
        match (found.pop(), found.len()) {
            (Some(one), 0) => Ok(one),
            (last, others) => Err(StepError::Answer(others + usize::from(last.is_some()))),
        }
    }

    async fn counter_cell(&mut self, name: &str, index: u64) -> Result<CounterData, StepError> {
        let cell = self.counter(name)?.cell(index)?;
        match self.read_one(cell).await? {
            Entity::CounterEntry(entry) => Ok(entry.data.unwrap_or_default()),
            _ => Err(StepError::Answer(1)),
        }
    }

    async fn check_counter(
        &mut self,
        name: &str,
        cell: &Cell,
        check: Option<Check>,
    ) -> Result<(), StepError> {
        let data = match cell {
            Cell::Index(index) => self.counter_cell(name, *index).await?,
            Cell::Entry(id) => {
                let entry = self.by_id.get(id).cloned();
                let entry = entry.ok_or_else(|| StepError::NoEntry(id.clone()))?;
                let is_its = self.p4info.direct_counters.iter().any(|counter| {
                    let name_of = counter.preamble.as_ref().map(|preamble| &preamble.name);
                    let is_called =
                        |full: &String| full == name || full.ends_with(&format!(".{name}"));
                    counter.direct_table_id == entry.table_id && name_of.is_some_and(is_called)
                });
                if !is_its {
                    return Err(StepError::NotItsCounter {
                        counter: name.to_owned(),
                        entry: id.clone(),
                    });
                }
                // A read names the entry by its key.
                let key = TableEntry {
                    action: None,
                    ..entry
                };
                let request = DirectCounterEntry {
                    table_entry: Some(key),
                    data: None,
                };
                match self.read_one(request).await? {
                    Entity::DirectCounterEntry(entry) => entry.data.unwrap_or_default(),
                    _ => return Err(StepError::Answer(1)),
                }
            }
        };
        let (packets, bytes) = (data.packet_count, data.byte_count);
        let holds = check.is_none_or(|check| {
            let count = if check.bytes { bytes } else { packets };
            check.relation.holds(count, check.number)
        });
        holds.then_some(()).ok_or_else(|| StepError::Count {
            counter: name.to_owned(),
            packets,
            bytes,
        })
    }

    async fn write_register(
        &mut self,
        entry: RegisterEntry,
        value: &BigUint,
    ) -> Result<(), StepError> {
        let value = bytestring(value).as_bytes().to_vec();
        let data = Some(P4Data {
            data: Some(Data::Bitstring(value)),
        });
        let update = Update::modify(RegisterEntry { data, ..entry });
        Ok(self.bench.client.write(update).await?)
    }

    /// Brings the target's groups and sessions to what the pieces make.
    async fn write_pieces(&mut self) -> Result<(), StepError> {
        let client = &mut self.bench.client;
        for group in self.pieces.groups()? {
            let id = group.multicast_group_id;
            match self.groups.get(&id) {
                None => client.write(Update::insert(group.clone())).await?,
                Some(old) if *old != group => client.write(Update::modify(group.clone())).await?,
                Some(_) => continue,
            }
            self.groups.insert(id, group);
        }
        let sessions = self.pieces.sessions()?;
        for session in &sessions {
            let id = session.session_id;
            match self.sessions.get(&id) {
                None => client.write(Update::insert(session.clone())).await?,
                Some(old) if old != session => {
                    client.write(Update::modify(session.clone())).await?;
                }
                Some(_) => continue,
            }
            self.sessions.insert(id, session.clone());
        }
        let kept = |id| sessions.iter().any(|session| session.session_id == id);
        let gone: Vec<u32> = (self.sessions.keys().copied())
            .filter(|id| !kept(*id))
            .collect();
        for id in gone {
            if let Some(session) = self.sessions.remove(&id) {
                client.write(Update::delete(session)).await?;
            }
        }
        Ok(())
    }

    /// BMv2 keeps groups and sessions when it gets another program.
    async fn clean_up(&mut self) {
        let client = &mut self.bench.client;
        for (_, session) in std::mem::take(&mut self.sessions) {
            // A target that does not let go of one refuses the next test's, which says so.
            let _ = client.write(Update::delete(session)).await;
        }
        for (_, group) in std::mem::take(&mut self.groups) {
            let _ = client.write(Update::delete(group)).await;
        }
    }
}

/// simple_switch_CLI's rates are per microsecond, P4Runtime's per second.
fn meter_config(rates: &Rates) -> MeterConfig {
    let per_second = |rate: f64| (rate * 1e6).round() as i64;
    MeterConfig {
        cir: per_second(rates.committed.0),
        cburst: rates.committed.1.into(),
        pir: per_second(rates.peak.0),
        pburst: rates.peak.1.into(),
        ..MeterConfig::default()
    }
}

/// Compares what came out with what must, port by port and in order.
fn compare(expected: &Expected, received: &Frames, end: usize) -> Result<(), Failure> {
    let ports = expected.keys().chain(received.keys());
    for &port in ports.collect::<std::collections::BTreeSet<_>>() {
        let expected = expected.get(&port).map(Vec::as_slice).unwrap_or_default();
        let frames = received.get(&port).map(Vec::as_slice).unwrap_or_default();
        for ((line, pattern), frame) in expected.iter().zip(frames) {
            let Some(pattern) = pattern else {
                continue;
            };
            if let Err(difference) = pattern.compare(frame) {
                let error = StepError::Frame {
                    port,
                    difference,
                    pattern: pattern.clone(),
                    frame: frame.clone(),
                };
                return Err(Failure::new(*line, error));
            }
        }
        if expected.len() != frames.len() {
            let line = expected.get(frames.len()).map_or(end, |(line, _)| *line);
            let error = StepError::Frames {
                port,
                got: frames.len(),
                expected: expected.len(),
                frame: frames.get(expected.len()).cloned(),
            };
            return Err(Failure::new(line, error));
        }
    }
    Ok(())
}
