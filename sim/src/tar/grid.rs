//! Hierarchical Transpose AllReduce: every rank has a core for its row and one for its column.

use std::time::Duration;

use ultima_host::{Config, Destination, Event, Grid, Layout, OperationId, Outcome, Part};

use super::side::{HostLink, Side};
use super::{Datagram, Results};
use crate::clock::Ps;
use crate::network::{Hosts, Network};
use crate::operations::Operations;
use crate::packet::{Group, Stamps, Target};
use crate::stages::Stages;
use crate::stages::TRAIN;
use crate::values::{self, Payload};

/// Index of a rank's row core, and its job's id in headers. Rows are separate jobs in a network; here their
/// packets cannot mix.
const ROW: usize = 0;
const COLUMN: usize = 1;
const JOBS: [u16; 2] = [1, 2];

/// The messages of a stage.
#[derive(Clone, Copy)]
enum Stage {
    RowScatter = 0,
    ColumnScatter = 1,
    ColumnGather = 2,
    RowGather = 3,
}

struct Rank<V> {
    sides: [Side<V>; 2],
    /// Its start of the current operation; never after the start.
    begins: Ps,
    /// With values: the bucket, while its shard is in the column.
    values: Vec<f32>,
}

/// All ranks of a grid.
pub(crate) struct TarOnGrid<'a, V> {
    grid: Grid,
    ranks: Vec<Rank<V>>,
    stages: Stages,
    operations: Operations<'a>,
    /// Values of a bucket.
    len: usize,
    /// Bytes of the longest message from one rank to another, in its row and in its column.
    messages: [u64; 2],
    train: Ps,
    number: u32,
    out: Vec<u8>,
    back: Vec<u8>,
    pub(crate) results: Results,
}

impl<'a, V: Payload> TarOnGrid<'a, V> {
    /// `config` returns a rank's configurations for its row and for its column.
    pub(crate) fn new(
        grid: Grid,
        config: &dyn Fn(u16) -> [Config; 2],
        len: usize,
        stages: Stages,
        operations: Operations<'a>,
    ) -> Self {
        let rank = |rank| {
            let [mut row, mut column] = config(rank);
            [row.job, column.job] = JOBS;
            Rank {
                sides: [Side::new(row), Side::new(column)],
                begins: Ps::NEVER,
                values: Vec::new(),
            }
        };
        let ranks: Vec<Rank<V>> = (0..grid.ranks()).map(rank).collect();
        let longest = |len: usize, ranks: u16| Layout::new(len, ranks, 1).shard(ranks - 1).len();
        let of_row = longest(len, grid.members());
        let of_column = longest(of_row, grid.groups());
        let longest = ranks[0]
            .sides
            .each_ref()
            .map(|side| side.core.max_datagram());
        Self {
            grid,
            stages,
            operations,
            len,
            messages: [of_row as u64 * 4, of_column as u64 * 4],
            train: Ps::to_send(TRAIN, stages.rate),
            number: 0,
            out: vec![0; longest[ROW].max(longest[COLUMN])],
            back: Vec::new(),
            results: Results::default(),
            ranks,
        }
    }

    pub(crate) fn into_operations(self) -> Operations<'a> {
        self.operations
    }

    fn id(&self) -> OperationId {
        OperationId {
            step: self.number,
            bucket: 0,
        }
    }

    /// This rank's shard in its row.
    fn shard(&self, host: u32) -> std::ops::Range<usize> {
        let member = self.grid.member_of(host as u16);
        Layout::new(self.len, self.grid.members(), 1).shard(member)
    }

    /// `host`'s wait before a stage's message.
    fn before(&self, stage: Stage, host: u32) -> Ps {
        before(&self.stages, &self.messages, self.number, stage, host)
    }

    /// Starts an operation at one of a rank's cores, with `values` if buckets have values.
    fn start(
        &mut self,
        net: &mut Network<Datagram>,
        host: u32,
        stage: Stage,
        id: OperationId,
        part: Part,
        values: Vec<f32>,
    ) {
        let now = net.now();
        let begins = now + self.before(stage, host);
        let (which, len) = match part {
            Part::Whole => (COLUMN, self.shard(host).len()),
            Part::Scatter | Part::Gather => (ROW, self.len),
        };
        let side = &mut self.ranks[host as usize].sides[which];
        side.begin(net, begins, part == Part::Whole);
        let bucket = V::of(values, len);
        let started = (side.core).start_with(now.to_core(), id, part.into(), bucket);
        started.expect("a phase starts when the one before has ended");
    }

    fn start_row(&mut self, net: &mut Network<Datagram>, host: u32) {
        let number = self.number;
        let rank = &mut self.ranks[host as usize];
        rank.begins = Ps::NEVER;
        let mut values = std::mem::take(&mut rank.values);
        if V::HAS_VALUES {
            values.clear();
            values.extend((0..self.len).map(|entry| values::contribution(number, host, entry)));
        }
        let id = Grid::scatter_id(self.id());
        self.start(net, host, Stage::RowScatter, id, Part::Scatter, values);
    }

    /// Handles the end of a phase at a rank: starts the next one.
    fn ended(
        &mut self,
        net: &mut Network<Datagram>,
        host: u32,
        which: usize,
        outcome: &Outcome,
        result: Vec<f32>,
    ) {
        self.count(host, which, outcome);
        let own = self.shard(host);
        if which == COLUMN {
            let mut values = std::mem::take(&mut self.ranks[host as usize].values);
            if V::HAS_VALUES {
                values[own].copy_from_slice(&result);
            }
            let id = Grid::gather_id(self.id());
            self.start(net, host, Stage::RowGather, id, Part::Gather, values);
        } else if outcome.id == Grid::scatter_id(self.id()) {
            let shard = result.get(own).unwrap_or_default().to_vec();
            self.ranks[host as usize].values = result;
            self.start(
                net,
                host,
                Stage::ColumnScatter,
                self.id(),
                Part::Whole,
                shard,
            );
        } else {
            let ranks = u32::from(self.grid.ranks());
            let error = values::worst_error(self.number, ranks, 0, &result);
            self.results.worst_error = self.results.worst_error.max(error);
            self.ranks[host as usize].values = result;
            self.operations.ended(net, host);
        }
    }

    fn count(&mut self, host: u32, which: usize, outcome: &Outcome) {
        let lost = outcome.lost.scatter.total() + outcome.lost.gather.total();
        self.results.owed += outcome.owed;
        self.results.arrived += outcome.owed - lost;
        if host > 0 {
            return;
        }
        if which == ROW && outcome.id == Grid::scatter_id(self.id()) {
            (self.results.t_s, self.results.t_b) = (outcome.t_s, Duration::ZERO);
            self.results.t_b += outcome.t_s;
        } else {
            self.results.t_b += outcome.t_b;
        }
    }

    /// Starts the operation if it is due, takes the cores' events, sends their packets, and schedules the
    /// next call.
    fn advance(&mut self, net: &mut Network<Datagram>, host: u32) {
        let at = host as usize;
        if self.ranks[at].begins <= net.now() {
            self.start_row(net, host);
        }
        // An end starts the next phase, and the last contribution sent ends its phase.
        loop {
            for which in [ROW, COLUMN] {
                while let Some(event) = self.ranks[at].sides[which].core.poll_event() {
                    if let Event::Done { outcome, result } = event {
                        self.ended(net, host, which, &outcome, result.into_vec());
                    }
                }
            }
            if !self.transmit(net, host) {
                break;
            }
        }
        let rank = &self.ranks[at];
        let next = rank.sides.each_ref().map(|side| side.next(net, host));
        net.wake(host, next[ROW].min(next[COLUMN]).min(rank.begins));
    }

    fn transmit(&mut self, net: &mut Network<Datagram>, host: u32) -> bool {
        let (grid, rank) = (self.grid, host as u16);
        let (group, member) = (grid.group_of(rank), grid.member_of(rank));
        let [members, groups] = [grid.members(), grid.groups()].map(u32::from);
        let row = Group::new(grid.rank(group, 0).into(), 1, members);
        let column = Group::new(member.into(), members, groups);
        let to_row = |to| match to {
            Destination::Rank(to) => Target::Host(grid.rank(group, to).into()),
            Destination::Group => Target::Group(row),
        };
        let to_column = |to| match to {
            Destination::Rank(to) => Target::Host(grid.rank(to, member).into()),
            Destination::Group => Target::Group(column),
        };
        let targets: [&dyn Fn(Destination) -> Target; 2] = [&to_row, &to_column];
        let (train, number) = (self.train, self.number);
        let mut sent = false;
        for (side, to) in self.ranks[host as usize].sides.iter_mut().zip(targets) {
            let link = HostLink { host, train, to };
            // Only a whole AllReduce has a gather after its scatter.
            sent |= side.transmit(net, &link, &mut self.out, || {
                let stage = Stage::ColumnGather;
                before(&self.stages, &self.messages, number, stage, host)
            });
        }
        sent
    }
}

fn before(stages: &Stages, messages: &[u64; 2], number: u32, stage: Stage, host: u32) -> Ps {
    let message = match stage {
        Stage::RowScatter | Stage::RowGather => messages[ROW],
        Stage::ColumnScatter | Stage::ColumnGather => messages[COLUMN],
    };
    stages.before(number, stage as u32, host, message)
}

impl<V: Payload> Hosts for TarOnGrid<'_, V> {
    type Body = Datagram;

    fn receive(&mut self, net: &mut Network<Datagram>, host: u32, stamps: Stamps, body: Datagram) {
        let which = usize::from(body.header.job == JOBS[COLUMN]);
        let core = &mut self.ranks[host as usize].sides[which].core;
        body.deliver(stamps, core, net.now().to_core(), &mut self.back);
        self.advance(net, host);
    }

    fn woken(&mut self, net: &mut Network<Datagram>, host: u32) {
        for side in &mut self.ranks[host as usize].sides {
            side.core.handle_timeout(net.now().to_core());
        }
        self.advance(net, host);
    }

    fn alarmed(&mut self, net: &mut Network<Datagram>) {
        self.number = self.operations.begin(net);
        for host in 0..net.hosts() {
            self.ranks[host as usize].begins = self.operations.begins(host);
            self.advance(net, host);
        }
    }
}
