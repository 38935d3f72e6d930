//! The grammar of scripts: each line is a command.
//!
//! The language is that of p4c's BMv2 tests (tools/stf and backends/bmv2/bmv2stf.py of p4c), with keywords in lower or upper
//! case. In addition, keys may be ranges (`0x1->0x5`) or have a mask (`0x1&&&0x3`), and values may be IPv4 addresses.

use super::cursor::Cursor;
use super::literal::Literal;
use super::pattern::{Pattern, unhex};

/// A command and the line that it is on, from 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its line.
    pub line: usize,
    /// The command.
    pub command: Command,
}

/// A line with an unknown command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: unknown command: {text}")]
pub struct UnknownLine {
    /// Its number, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
}

/// A command.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// `add TABLE [PRIORITY] KEY:VALUE … ACTION(ARG:VALUE, …) [= ID]`
    Add {
        /// The table.
        table: String,
        /// Priority; the highest wins.
        priority: Option<i32>,
        /// Matches by key field.
        key: Vec<(String, KeyValue)>,
        /// Action of a hit.
        action: Call,
        /// Name of the entry for later lines.
        id: Option<String>,
    },
    /// `setdefault TABLE ACTION(…)`
    SetDefault {
        /// The table.
        table: String,
        /// The action of a miss.
        action: Call,
    },
    /// `remove all`: all entries that the test has added.
    RemoveAll,
    /// `packet PORT DATA`
    Packet {
        /// The ingress port.
        port: u16,
        /// The frame.
        frame: Vec<u8>,
    },
    /// `expect PORT [PATTERN]`; without a pattern any frame will do.
    Expect {
        /// The egress port.
        port: u16,
        /// The expected frame. None for any.
        pattern: Option<Pattern>,
    },
    /// `no_packet`: nothing is expected. Unexpected frames fail a test in any case.
    NoPacket,
    /// `wait`: until all frames sent so far are through.
    Wait,
    /// `check_counter NAME(INDEX or ENTRY) [packets|bytes RELATION NUMBER]`
    CheckCounter {
        /// The counter.
        counter: String,
        /// Which of its cells.
        cell: Cell,
        /// The expected value. None for any.
        check: Option<Check>,
    },
    /// `counter_read NAME INDEX`
    CounterRead(String, u64),
    /// `counter_write NAME INDEX PACKETS BYTES`
    CounterWrite(String, u64, i64, i64),
    /// `register_read NAME INDEX`
    RegisterRead(String, u64),
    /// `register_write NAME INDEX VALUE`
    RegisterWrite(String, u64, Literal),
    /// `register_reset NAME`
    RegisterReset(String),
    /// `meter_get_rates NAME INDEX`
    MeterRead(String, u64),
    /// `meter_set_rates NAME INDEX RATE:BURST RATE:BURST`
    MeterWrite(String, u64, Rates),
    /// `meter_array_set_rates NAME RATE:BURST RATE:BURST`
    MeterWriteAll(String, Rates),
    /// `mirroring_add SESSION PORT`
    MirrorToPort(u32, u32),
    /// `mirroring_add_mc SESSION GROUP`
    MirrorToGroup(u32, u32),
    /// `mirroring_delete SESSION`
    MirrorDelete(u32),
    /// `mirroring_get SESSION`
    MirrorGet(u32),
    /// `mc_mgrp_create GROUP`
    GroupCreate(u32),
    /// `mc_node_create RID PORT …`; nodes are numbered from 0 in the order of their creation.
    NodeCreate(u32, Vec<u32>),
    /// `mc_node_update NODE PORT …`
    NodeUpdate(usize, Vec<u32>),
    /// `mc_node_associate GROUP NODE`
    NodeAssociate(u32, usize),
}

/// A key field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyValue {
    /// A number, maybe with open digits.
    Plain(Literal),
    /// A number and how many of its leading bits count.
    Prefix(Literal, u32),
    /// A number and the bits of it that count.
    Masked(Literal, Literal),
    /// From and to.
    Range(Literal, Literal),
}

/// An action with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The action.
    pub action: String,
    /// By the parameters' names.
    pub arguments: Vec<(String, Literal)>,
}

/// A counter's cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// Of an array.
    Index(u64),
    /// Of the entry that was added under this name.
    Entry(String),
}

/// The expected value of a counter's cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Bytes instead of packets.
    pub bytes: bool,
    /// How the count is compared.
    pub relation: Relation,
    /// With what.
    pub number: i64,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // Their names say it.
pub enum Relation {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Relation {
    /// True if `left` has this relation to `right`.
    pub fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Relation::Equal => left == right,
            Relation::NotEqual => left != right,
            Relation::Less => left < right,
            Relation::LessOrEqual => left <= right,
            Relation::Greater => left > right,
            Relation::GreaterOrEqual => left >= right,
        }
    }
}

/// A meter's two rates, as simple_switch_CLI takes them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Committed rate, in units per microsecond, and its burst, in units.
    pub committed: (f64, u32),
    /// Peak rate and its burst.
    pub peak: (f64, u32),
}

/// Reads a test.
///
/// # Errors
/// The first line that is no command.
pub fn parse(text: &str) -> Result<Vec<Step>, UnknownLine> {
    let mut steps = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let code = without_comment(text);
        if code.is_empty() {
            continue;
        }
        let command = command(code).ok_or_else(|| UnknownLine {
            line,
            text: code.to_owned(),
        })?;
        steps.push(Step { line, command });
    }
    Ok(steps)
}

/// The line up to a `#` that is not in quotes.
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let comment = line.find(|c| {
        quoted ^= c == '"';
        c == '#' && !quoted
    });
    line[..comment.unwrap_or(line.len())].trim()
}

/// One line. `None`: it is no command.
fn command(line: &str) -> Option<Command> {
    let mut rest = Cursor::new(line);
    let keyword = rest.word()?.to_ascii_lowercase();
    let command = match keyword.as_str() {
        "add" => {
            let table = rest.qualified_name()?;
            let priority = match rest.digits() {
                Some(digits) => Some(digits.parse().ok()?),
                None => None,
            };
            let (key, action) = key_and_action(&mut rest)?;
            let id = match rest.eat("=") {
                true => Some(rest.name()?),
                false => None,
            };
            Command::Add {
                table,
                priority,
                key,
                action,
                id,
            }
        }
        "setdefault" => {
            let table = rest.qualified_name()?;
            let action = rest.qualified_name()?;
            let action = call(&mut rest, action)?;
            Command::SetDefault { table, action }
        }
        "remove" => {
            let all = rest.word()?.eq_ignore_ascii_case("all");
            all.then_some(Command::RemoveAll)?
        }
        "packet" => {
            let port = rest.digits()?.parse().ok()?;
            let frame = unhex(rest.rest()).filter(|frame| !frame.is_empty())?;
            Command::Packet { port, frame }
        }
        "expect" => {
            let port = rest.digits()?.parse().ok()?;
            let pattern = match rest.rest() {
                "" => None,
                text => Some(Pattern::parse(text)?),
            };
            Command::Expect { port, pattern }
        }
        "no_packet" => Command::NoPacket,
        "wait" => Command::Wait,
        "check_counter" => check_counter(&mut rest)?,
        "counter_read" => Command::CounterRead(rest.qualified_name()?, rest.number()?),
        "counter_write" => Command::CounterWrite(
            rest.qualified_name()?,
            rest.number()?,
            rest.number()?,
            rest.number()?,
        ),
        "register_read" => Command::RegisterRead(rest.qualified_name()?, rest.number()?),
        "register_write" => {
            let (name, index) = (rest.qualified_name()?, rest.number()?);
            let value = rest.literal().filter(|literal| !literal.open)?;
            Command::RegisterWrite(name, index, value)
        }
        "register_reset" => Command::RegisterReset(rest.qualified_name()?),
        "meter_get_rates" => Command::MeterRead(rest.qualified_name()?, rest.number()?),
        "meter_set_rates" => {
            Command::MeterWrite(rest.qualified_name()?, rest.number()?, rates(&mut rest)?)
        }
        "meter_array_set_rates" => {
            Command::MeterWriteAll(rest.qualified_name()?, rates(&mut rest)?)
        }
        "mirroring_add" => Command::MirrorToPort(rest.number()?, rest.number()?),
        "mirroring_add_mc" => Command::MirrorToGroup(rest.number()?, rest.number()?),
        "mirroring_delete" => Command::MirrorDelete(rest.number()?),
        "mirroring_get" => Command::MirrorGet(rest.number()?),
        "mc_mgrp_create" => Command::GroupCreate(rest.number()?),
        "mc_node_create" => Command::NodeCreate(rest.number()?, ports(&mut rest)?),
        "mc_node_update" => Command::NodeUpdate(rest.number()?, ports(&mut rest)?),
        "mc_node_associate" => Command::NodeAssociate(rest.number()?, rest.number()?),
        _ => return None,
    };
    rest.is_empty().then_some(command)
}

/// Names with a colon behind them are key fields; the one with a parenthesis is the action.
fn key_and_action(rest: &mut Cursor<'_>) -> Option<(Vec<(String, KeyValue)>, Call)> {
    let mut key = Vec::new();
    loop {
        let name = rest.qualified_name()?;
        if !rest.eat(":") {
            return Some((key, call(rest, name)?));
        }
        let value = rest.literal()?;
        let value = if rest.eat("/") {
            KeyValue::Prefix(value, rest.number()?)
        } else if rest.eat("&&&") {
            KeyValue::Masked(value, rest.literal()?)
        } else if rest.eat("->") {
            KeyValue::Range(value, rest.literal()?)
        } else {
            KeyValue::Plain(value)
        };
        key.push((name, value));
    }
}

/// The arguments behind an action's name.
fn call(rest: &mut Cursor<'_>, action: String) -> Option<Call> {
    let mut arguments = Vec::new();
    rest.expect("(")?;
    while !rest.eat(")") {
        if !arguments.is_empty() {
            rest.expect(",")?;
        }
        let name = rest.name()?;
        rest.expect(":")?;
        arguments.push((name, rest.literal().filter(|literal| !literal.open)?));
    }
    Some(Call { action, arguments })
}

fn check_counter(rest: &mut Cursor<'_>) -> Option<Command> {
    let counter = rest.qualified_name()?;
    rest.expect("(")?;
    let cell = match rest.name() {
        // `= A` names an entry, `$A` stands for it.
        Some(entry) => Cell::Entry(entry.trim_start_matches('$').to_owned()),
        None => Cell::Index(rest.number()?),
    };
    rest.expect(")")?;
    let check = if rest.is_empty() {
        None
    } else {
        let bytes = match rest.name()?.to_ascii_lowercase().as_str() {
            "bytes" => true,
            "packets" => false,
            _ => return None,
        };
        let relation = relation(rest)?;
        let number = rest.number()?;
        Some(Check {
            bytes,
            relation,
            number,
        })
    };
    Some(Command::CheckCounter {
        counter,
        cell,
        check,
    })
}

fn relation(rest: &mut Cursor<'_>) -> Option<Relation> {
    // The longer ones first.
    let relations = [
        ("==", Relation::Equal),
        ("!=", Relation::NotEqual),
        ("<=", Relation::LessOrEqual),
        (">=", Relation::GreaterOrEqual),
        ("<", Relation::Less),
        (">", Relation::Greater),
    ];
    let found = relations.into_iter().find(|(sign, _)| rest.eat(sign));
    found.map(|(_, relation)| relation)
}

fn rates(rest: &mut Cursor<'_>) -> Option<Rates> {
    let mut one = || {
        let rate = rest.decimal()?;
        rest.expect(":")?;
        Some((rate, rest.number()?))
    };
    Some(Rates {
        committed: one()?,
        peak: one()?,
    })
}

fn ports(rest: &mut Cursor<'_>) -> Option<Vec<u32>> {
    let mut ports = Vec::new();
    while !rest.is_empty() {
        ports.push(rest.number()?);
    }
    Some(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Command {
        let mut steps = parse(line).expect("understood");
        assert_eq!(steps.len(), 1, "{line}");
        steps.remove(0).command
    }

    fn number(text: &str) -> Literal {
        Literal::parse(text).expect("a number")
    }

    #[test]
    fn entries_have_keys_actions_and_names() {
        let add =
            one("ADD c.\"a #1\" 7 h[0].f:0x1* g : 1->2 p:0xa/4 m:1&&&3 act(port:2,idx:0b1) = A");
        let key = |name: &str, value| (name.to_owned(), value);
        assert_eq!(
            add,
            Command::Add {
                table: "c.a #1".into(),
                priority: Some(7),
                key: vec![
                    key("h[0].f", KeyValue::Plain(number("0x1*"))),
                    key("g", KeyValue::Range(number("1"), number("2"))),
                    key("p", KeyValue::Prefix(number("0xa"), 4)),
                    key("m", KeyValue::Masked(number("1"), number("3"))),
                ],
                action: Call {
                    action: "act".into(),
                    arguments: vec![("port".into(), number("2")), ("idx".into(), number("0b1")),],
                },
                id: Some("A".into()),
            }
        );
    }

    #[test]
    fn counters_are_checked_by_index_or_entry() {
        let check = |line: &str| match one(line) {
            Command::CheckCounter { cell, check, .. } => (cell, check),
            other => panic!("{other:?}"),
        };
        assert_eq!(check("check_counter c(3)"), (Cell::Index(3), None));
        let (cell, found) = check("check_counter c($A) bytes >= 0x10 # enough");
        assert_eq!(cell, Cell::Entry("A".into()));
        let found = found.expect("a condition");
        assert!(found.bytes && found.relation.holds(16, found.number));
        assert!(!found.relation.holds(15, found.number));
    }

    #[test]
    fn unknown_commands_are_reported_with_their_line() {
        for wrong in [
            "packet 1",
            "packet 1 0a1",
            "packet 1 0a1*",
            "packet x 0a",
            "expect 1 0a$1",
            "add t k:1",
            "add t act(",
            "add t act(a:1*)",
            "setdefault t",
            "remove one",
            "wait for it",
            "check_counter c(1) packets = 1",
            "mirroring_add 1",
            "meter_set_rates m 1 0.1:1",
            "register_write r 0 0x*",
            "no_packets",
        ] {
            let error = parse(&format!("# a test\n\n{wrong}")).expect_err(wrong);
            assert_eq!(
                error.to_string(),
                format!("line 3: unknown command: {wrong}")
            );
        }
    }
}
