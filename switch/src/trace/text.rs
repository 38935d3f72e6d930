//! Prints a trace as text: the packet first, then each copy, in the order of their numbers.

use std::fmt::{self, Display, Write};

use super::{
    Arrival, Call, Counted, Event, Fate, KeyField, Matched, Named, Origin, PacketTrace, Source,
    Step, Value,
};
use crate::engine::DropCause;

/// Returns a trace as lines of text.
pub fn text(trace: &PacketTrace) -> String {
    let mut page = Page::default();
    page.line(format_args!(
        "{} at port {}, {}.{:06} s",
        bytes(trace.frame.0.len()),
        trace.port,
        trace.at_us / 1_000_000,
        trace.at_us % 1_000_000
    ));
    page.dump(&trace.frame.0);
    page.events(trace, 0);
    for copy in &trace.copies {
        let of = match copy.of {
            0 => String::new(),
            of => format!(" of copy {of}"),
        };
        page.line(format_args!(
            "copy {}{of}: to port {}{}, {}",
            copy.copy,
            copy.port,
            rid(copy.rid),
            origin(copy.origin)
        ));
        page.events(trace, copy.copy);
        if copy.fate == Fate::UnderWay {
            page.line(format_args!("  still under way when the trace ended"));
        }
    }
    if trace.omitted > 0 {
        page.line(format_args!("{} events were too many", trace.omitted));
    }
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
    /// Indentation of the current stage.
    indent: &'static str,
}

impl Page {
    fn line(&mut self, text: fmt::Arguments<'_>) {
        writeln!(self.text, "{text}").expect("writing to a string succeeds");
    }

    /// Prints a line of the current stage, followed by its source position.
    fn step(&mut self, text: impl Display, source: Option<&Source>) {
        let indent = self.indent;
        match source {
            Some(Source { file, line, .. }) => {
                self.line(format_args!("{indent}{text}  [{file}:{line}]"));
            }
            None => self.line(format_args!("{indent}{text}")),
        }
    }

    /// Prints bytes, sixteen per line.
    fn dump(&mut self, bytes: &[u8]) {
        for (row, chunk) in bytes.chunks(16).enumerate() {
            let mut line = format!("    {:04x} ", row * 16);
            for byte in chunk {
                write!(line, " {byte:02x}").expect("writing to a string succeeds");
            }
            self.line(format_args!("{line}"));
        }
    }

    fn events(&mut self, trace: &PacketTrace, copy: u16) {
        self.indent = "  ";
        for step in trace.events.iter().filter(|step| step.copy == copy) {
            self.event(step);
        }
    }

    fn stage(&mut self, name: fmt::Arguments<'_>) {
        self.line(format_args!("  {name}"));
        self.indent = "    ";
    }

    fn event(&mut self, step: &Step) {
        let source = step.source.as_ref();
        match &step.event {
            Event::Ingress {
                arrival,
                port,
                bytes: length,
            } => match (arrival, port) {
                (Arrival::Entered, Some(port)) => {
                    self.stage(format_args!("ingress from port {port}"))
                }
                (Arrival::Entered, None) => self.stage(format_args!("ingress")),
                (Arrival::Resubmitted, _) => {
                    self.stage(format_args!(
                        "resubmitted: ingress again, {}",
                        bytes(*length)
                    ));
                }
                (Arrival::Recirculated, _) => {
                    self.stage(format_args!(
                        "recirculated: ingress again, {}",
                        bytes(*length)
                    ));
                }
            },
            Event::State { name, at } => {
                self.step(format_args!("state {name} at byte {at}"), source)
            }
            Event::Extract {
                header,
                bytes: length,
                fields,
                ..
            } => self.step(
                format_args!("  extract {header}, {}: {}", bytes(*length), List(fields)),
                source,
            ),
            Event::Advance { bytes: length } => {
                self.step(format_args!("  advance {}", bytes(*length)), source);
            }
            Event::Select { key, case, next } => match key.as_slice() {
                [] => self.step(format_args!("  go to {next}"), source),
                key => self.step(
                    format_args!("  select {}: {case}, go to {next}", List(key)),
                    source,
                ),
            },
            Event::ParserError { error, at } => {
                self.step(format_args!("parser error {error} at byte {at}"), source);
            }
            Event::Parsed {
                bytes: length,
                payload,
            } => self.step(
                format_args!("parsed {}, {} of payload", bytes(*length), bytes(*payload)),
                source,
            ),
            Event::Verify {
                field,
                value,
                computed,
            } => {
                let verdict = if value == computed {
                    "correct"
                } else {
                    "wrong"
                };
                self.step(
                    format_args!("checksum {field} {value}, computed {computed}: {verdict}"),
                    source,
                );
            }
            Event::Condition { name, holds } => {
                let text = source.map_or(name.as_str(), |source| source.text.as_str());
                self.step(format_args!("if {text}: {holds}"), source);
            }
            Event::Table {
                name,
                key,
                hit,
                priority,
                via,
                action,
                counter,
            } => {
                let hit = if *hit { "hit" } else { "miss" };
                let priority = priority.map_or_else(String::new, |p| format!(", priority {p}"));
                self.step(format_args!("table {name}: {hit}{priority}"), source);
                for field in key {
                    self.step(format_args!("  {}", KeyLine(field)), None);
                }
                if let Some(counter) = counter {
                    self.step(format_args!("  counter {}", Cell(counter)), None);
                }
                if let Some(via) = via {
                    self.step(format_args!("  {via}"), None);
                }
                match action {
                    Some(action) => self.step(format_args!("  action {}", CallLine(action)), None),
                    None => self.step("  no action", None),
                }
            }
            Event::Statements { .. } => self.step("statements", source),
            Event::Write {
                field,
                old,
                new,
                invalid,
            } => {
                let lost = if *invalid {
                    ", in an invalid header"
                } else {
                    ""
                };
                self.step(format_args!("  {field}: {old} -> {new}{lost}"), source);
            }
            Event::Validity { header, valid } => {
                let valid = if *valid { "valid" } else { "invalid" };
                self.step(format_args!("  {header} becomes {valid}"), source);
            }
            Event::Count {
                counter,
                index,
                cell,
            } => match cell {
                Some(cell) => self.step(
                    format_args!("  count {counter}[{index}]: {}", Cell(cell)),
                    source,
                ),
                None => self.step(
                    format_args!("  count {counter}[{index}]: no such cell"),
                    source,
                ),
            },
            Event::Meter {
                meter,
                index,
                color,
            } => {
                let name = meter.as_deref().unwrap_or("of the table");
                let index = index
                    .as_ref()
                    .map_or_else(String::new, |index| format!("[{index}]"));
                let color = match color {
                    Some(0) => "green",
                    Some(1) => "yellow",
                    Some(_) => "red",
                    None => "no such cell",
                };
                self.step(format_args!("  meter {name}{index}: {color}"), source);
            }
            Event::RegisterRead {
                register,
                index,
                value,
            } => {
                self.step(
                    format_args!("  read {register}[{index}]: {}", Held(value)),
                    source,
                );
            }
            Event::RegisterWrite {
                register,
                index,
                old,
                new,
            } => self.step(
                format_args!(
                    "  write {register}[{index}]: {} -> {}",
                    Held(old),
                    Held(new)
                ),
                source,
            ),
            Event::Hash { calculation } => self.step(format_args!("  hash {calculation}"), source),
            Event::Primitive { name, argument } => match argument {
                Some(argument) => self.step(format_args!("  {name}({argument})"), source),
                None => self.step(format_args!("  {name}()"), source),
            },
            Event::Digest { digest, values } => {
                let values: Vec<_> = values.iter().map(Value::to_string).collect();
                self.step(
                    format_args!("  digest {digest}: {}", values.join(" ")),
                    source,
                );
            }
            Event::Assert { holds } => self.step(format_args!("  assert: {holds}"), source),
            Event::Log { text } => self.step(format_args!("  log: {text}"), source),
            Event::NoSession { session } => {
                self.step(format_args!("no clone session {session}: no clone"), source);
            }
            Event::Ordered {
                number,
                port,
                rid: id,
                origin: reason,
            } => match number {
                0 => self.step(
                    format_args!(
                        "copy to port {port}{}, {}, not followed",
                        rid(*id),
                        origin(*reason)
                    ),
                    source,
                ),
                number => self.step(
                    format_args!(
                        "copy {number} to port {port}{}, {}",
                        rid(*id),
                        origin(*reason)
                    ),
                    source,
                ),
            },
            Event::CloneRefused { replicas } => self.step(
                format_args!("clones refused at the limits: {replicas}"),
                source,
            ),
            Event::ReplicasRefused { replicas } => self.step(
                format_args!("replicas refused at the limit of descendants: {replicas}"),
                source,
            ),
            Event::Egress {
                depth, queued_us, ..
            } => self.stage(format_args!(
                "egress after {queued_us} us in the queue, behind {}",
                many(u64::from(*depth), "packet")
            )),
            Event::Update { field, old, new } => {
                self.step(format_args!("checksum {field}: {old} -> {new}"), source);
            }
            Event::Deparse {
                headers,
                payload,
                cut,
                bytes: length,
                frame,
            } => {
                let cut = match cut {
                    0 => String::new(),
                    cut => format!(", truncated by {cut}"),
                };
                self.stage(format_args!(
                    "deparser: {} + {} of payload{cut} = {}",
                    headers.join(" + "),
                    bytes(*payload),
                    bytes(*length)
                ));
                if let Some(frame) = frame {
                    self.dump(&frame.0);
                }
            }
            Event::CongestionExperienced => {
                self.step("marked with ECN's Congestion Experienced", None);
            }
            Event::Dropped { cause } => self.line(format_args!("  dropped: {}", why(*cause))),
            Event::Fate { fate } => self.line(format_args!("  {}", end(*fate))),
        }
    }
}

fn bytes(count: usize) -> String {
    many(count as u64, "byte")
}

fn many(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

fn rid(rid: u16) -> String {
    match rid {
        0 => String::new(),
        rid => format!(" as RID {rid}"),
    }
}

fn origin(origin: Origin) -> String {
    match origin {
        Origin::Unicast => "unicast".to_owned(),
        Origin::Multicast { group } => format!("multicast group {group}"),
        Origin::Clone { session } => format!("clone session {session}"),
    }
}

fn why(cause: DropCause) -> &'static str {
    match cause {
        DropCause::Program => "the program wants it",
        DropCause::EmptyGroup => "the multicast group has no replicas",
        DropCause::ParserLimit => "limit of parser states reached",
        DropCause::JumpLimit => "limit of jumps in actions reached",
        DropCause::PassLimit => "limit of passes (resubmit, recirculate, egress clone) reached",
        DropCause::DescendantLimit => "limit of what may come of one packet reached",
        DropCause::Assertion => "an assertion does not hold",
    }
}

fn end(fate: Fate) -> &'static str {
    match fate {
        Fate::Left => "left the port",
        Fate::Dropped => "gone in egress",
        Fate::Recirculated => "went through ingress again",
        Fate::QueueFull => "dropped: the queue is full",
        Fate::LostOnWire => "lost on the wire",
        Fate::NoPeer => "dropped: no peer is attached to the port",
        Fate::Oversize => "dropped: longer than the port's medium carries",
        Fate::NoPort => "dropped: there is no such port",
        Fate::Reconfigured => "dropped: another program was committed while it was queued",
        Fate::PortRemoved => "lost: the port was removed before it had left",
        Fate::UnderWay => "still under way when the trace ended",
    }
}

/// Names and values.
struct List<'a>(&'a [Named]);

impl Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Named { name, value }) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

struct CallLine<'a>(&'a Call);

impl Display for CallLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.0.name, List(&self.0.params))
    }
}

struct KeyLine<'a>(&'a KeyField);

impl Display for KeyLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyField {
            name,
            kind,
            value,
            matched,
        } = self.0;
        write!(f, "{name} = {value} ({kind}")?;
        match matched {
            None => {}
            Some(Matched::Equal { entry }) => write!(f, " {entry}")?,
            Some(Matched::Prefix { prefix, prefix_len }) => write!(f, " {prefix}/{prefix_len}")?,
            Some(Matched::Masked { entry, mask }) => write!(f, " {entry} &&& {mask}")?,
            Some(Matched::Range { low, high }) => write!(f, " {low}..{high}")?,
        }
        write!(f, ")")
    }
}

struct Cell<'a>(&'a Counted);

impl Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counted { packets, bytes } = *self.0;
        write!(f, "{}, {}", many(packets, "packet"), many(bytes, "byte"))
    }
}

struct Held<'a>(&'a Option<Value>);

impl Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => value.fmt(f),
            None => write!(f, "no such cell"),
        }
    }
}
