//! Collective algorithms as messages: which rank sends how much to which, after receiving what.
//!
//! Each algorithm is one file. They do not depend on the transport: [`crate::tcp`] carries their messages.

mod exchange;
mod parameter_server;
mod ring;
mod tar;
mod tree;

pub(crate) use exchange::Exchange;
pub(crate) use parameter_server::ParameterServer;
pub(crate) use ring::Ring;
pub(crate) use tar::Transpose;
pub(crate) use tree::DoubleTree;

/// Bytes of a piece in pipelined algorithms: small enough to fill the pipeline, large enough for a small cost
/// per message.
pub(crate) const CHUNK: u64 = 256 << 10;

/// A message from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The sender's stage in the algorithm: messages of one stage have the same delay.
    pub(crate) stage: u32,
    /// Distinguishes messages of one stage.
    pub(crate) piece: u32,
    pub(crate) bytes: u64,
}

/// One operation of an algorithm, at all ranks.
pub(crate) trait Schedule {
    /// Starts an operation. Adds the messages that can be sent at once to `send`.
    fn begin(&mut self, send: &mut Vec<Message>);

    /// Handles a complete `message`. Adds its receiver's next messages to `send`.
    fn received(&mut self, message: &Message, send: &mut Vec<Message>);

    /// True if `rank` has its result.
    fn is_done(&self, rank: u32) -> bool;
}

/// Bytes of part `part` of `parts`, which differ by at most one. An empty part is sent as one byte.
fn part(bytes: u64, part: u32, parts: u32) -> u64 {
    let boundary = |part: u32| (u128::from(bytes) * u128::from(part) / u128::from(parts)) as u64;
    (boundary(part + 1) - boundary(part)).max(1)
}

/// Number of pieces of `bytes`.
fn chunks(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(CHUNK)).expect("under 2^50 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers all messages, the newest first or last, and returns them.
    fn run(schedule: &mut dyn Schedule, ranks: u32, latest_first: bool) -> Vec<Message> {
        let mut waiting = Vec::new();
        let mut all = Vec::new();
        schedule.begin(&mut waiting);
        while !waiting.is_empty() {
            // Messages from one rank to another keep their order, as in a connection.
            let at = if latest_first { waiting.len() - 1 } else { 0 };
            let Message { from, to, .. } = waiting[at];
            let same = |m: &Message| (m.from, m.to) == (from, to);
            let at = waiting.iter().position(same).expect("it is there");
            let message = waiting.remove(at);
            assert!(!schedule.is_done(message.to), "{message:?}");
            let mut send = Vec::new();
            schedule.received(&message, &mut send);
            assert!(send.iter().all(|sent| sent.from == message.to));
            waiting.extend(send);
            all.push(message);
        }
        assert!((0..ranks).all(|rank| schedule.is_done(rank)));
        all.sort_unstable();
        all
    }

    const BYTES: u64 = 1_000_000;

    fn schedules(ranks: u32) -> Vec<(&'static str, Box<dyn Schedule>)> {
        vec![
            ("ring", Box::new(Ring::new(ranks, BYTES))),
            ("tree", Box::new(DoubleTree::new(ranks, BYTES))),
            ("halving-doubling", Box::new(Exchange::new(2, ranks, BYTES))),
            ("bcube", Box::new(Exchange::new(4, ranks, BYTES))),
            (
                "parameter server",
                Box::new(ParameterServer::new(ranks, BYTES)),
            ),
            ("tar", Box::new(Transpose::new(ranks, BYTES))),
        ]
    }

    #[test]
    fn every_rank_gets_its_result_in_any_order_and_again() {
        for ranks in [2, 3, 4, 5, 7, 8, 13, 16, 33] {
            for (name, mut schedule) in schedules(ranks) {
                let first = run(schedule.as_mut(), ranks, false);
                assert_eq!(
                    first,
                    run(schedule.as_mut(), ranks, true),
                    "{name}, {ranks}"
                );
                let messages = first.iter().all(|m| m.from != m.to && m.bytes > 0);
                assert!(messages, "{name}, {ranks}");
            }
        }
    }

    #[test]
    fn optimal_algorithms_send_the_minimum() {
        let ranks = 16;
        let least = 2 * BYTES * u64::from(ranks - 1);
        for (name, mut schedule) in schedules(ranks) {
            let moved: u64 = run(schedule.as_mut(), ranks, false)
                .iter()
                .map(|m| m.bytes)
                .sum();
            // Parts are rounded up to whole bytes.
            assert!(
                (least..least + 10_000).contains(&moved),
                "{name}: {moved} of {least}"
            );
        }
    }
}
