//! Compiles numbers: assignments, and the words that hold results.

use super::super::action::{Instruction, Target};
use super::super::bits::{Place, Slot};
use super::super::compile;
use super::super::expression::{EXACT, Num};
use super::super::layout::Layout;
use super::super::layout::WORK;
use super::super::phv::OPERANDS;
use super::super::standard::DROP_PORT;
use super::super::word::{self, At, MAX_OPS};
use super::compile::Compiler;
use super::{Op, Wide};

/// The bits of a meter's colour.
const COLOR_BITS: u32 = 2;
pub(super) const MAX_RESULTS: usize = WORK / size_of::<u64>() - OPERANDS;

impl Compiler<'_> {
    /// Compiles an instruction by operations on words; `None`, and no code, if there are none for it.
    pub fn primitive(&mut self, instruction: &Instruction) -> Option<()> {
        match instruction {
            Instruction::Assign(compile::Place::Fixed(slot), num) => {
                return self.assign(*slot, num);
            }
            Instruction::MarkToDrop {
                egress_spec,
                mcast_grp,
            } => {
                self.assign(*egress_spec, &Num::constant(DROP_PORT))?;
                if let Some(mcast_grp) = mcast_grp {
                    self.assign(*mcast_grp, &Num::constant(0))?;
                }
            }
            Instruction::Extract(Target::Header(header), None) => {
                self.push(extraction(*header, self.source.layout)?);
            }
            Instruction::Count { counter, index } => {
                let index = self.number(index, EXACT);
                let counter = *counter as u32;
                self.push(Op::Count { index, counter });
            }
            Instruction::Meter {
                meter,
                index,
                color: compile::Place::Fixed(slot),
            } if slot.width >= COLOR_BITS => {
                let Place::Word(to) = slot.place()? else {
                    return None;
                };
                let index = self.number(index, EXACT);
                let meter = *meter as u32;
                self.push(Op::Meter { to, index, meter });
            }
            Instruction::RegisterRead {
                to: compile::Place::Fixed(slot),
                register,
                index,
            } if (1..=slot.width.min(64)).contains(&self.source.registers[*register].width()) => {
                let Place::Word(to) = slot.place()? else {
                    return None;
                };
                let index = self.number(index, EXACT);
                let register = *register as u32;
                self.push(Op::ReadRegister {
                    to,
                    index,
                    register,
                });
            }
            Instruction::RegisterWrite {
                register,
                index,
                width: 0..=64,
                value,
            } => {
                let width = self.source.registers[*register].width();
                let [index, from] = self.numbers([(index, EXACT), (value, width)]);
                self.push(Op::WriteRegister {
                    index,
                    from,
                    register: *register as u32,
                });
            }
            _ => return None,
        }
        Some(())
    }

    /// Assigns to a field. `None`, and no code, if words do not suffice.
    fn assign(&mut self, slot: Slot, num: &Num) -> Option<()> {
        if slot.width > 64 {
            return None;
        }
        let from = self.number(num, slot.width);
        self.store(slot, from);
        Some(())
    }

    /// Stores a word in a field of at most 64 bits.
    fn store(&mut self, slot: Slot, from: At) {
        if self.dead {
            return;
        }
        let fits = self.bits(from) <= slot.width;
        let fresh = std::mem::take(&mut self.fresh);
        let Some(Place::Word(to)) = slot.place() else {
            return self.push(match slot.place() {
                Some(Place::Wire(wire)) => Op::Store(wire, from),
                _ => Op::StoreFar(from, Box::new(slot)),
            });
        };
        let field = u64::MAX >> (64 - slot.width);
        match self.ops.last_mut() {
            // The last operation has its result there.
            Some(Op::Compute {
                to: result, mask, ..
            }) if fresh => {
                *result = to;
                *mask &= if fits { u64::MAX } else { field };
            }
            _ => self.copy(to, from, field),
        }
    }

    /// Copies a word's bits of a mask to another word.
    pub fn copy(&mut self, to: At, from: At, mask: u64) {
        let op = word::Op::AndConst(from, mask);
        self.push(Op::Compute { to, mask, op });
        self.fresh = false;
    }

    /// Frees all words of the working memory, for another number.
    pub fn restart(&mut self) {
        self.used = 0;
        self.bits.clear();
    }

    /// A free word of the working memory.
    fn temporary(&mut self) -> At {
        self.used += 1;
        ((OPERANDS + self.used - 1) * size_of::<u64>()) as At
    }

    /// Returns the maximum width of a word's number in bits.
    pub fn bits(&self, at: At) -> u32 {
        self.bits.get(&at).copied().unwrap_or(64)
    }

    /// The word that holds the lowest `need` bits of a number.
    pub fn number(&mut self, num: &Num, need: u32) -> At {
        let [at] = self.numbers([(num, need)]);
        at
    }

    /// The words that hold numbers. There is room for [`MAX_OPS`] operations of each.
    fn numbers<const N: usize>(&mut self, nums: [(&Num, u32); N]) -> [At; N] {
        const { assert!(N * MAX_OPS <= MAX_RESULTS) };
        self.restart();
        nums.map(|(num, need)| {
            let ops = match need {
                EXACT => word::whole(num),
                need => word::low(num, need),
            };
            match ops {
                Some(ops) => self.word(&ops),
                None => self.wide(num, need),
            }
        })
    }

    /// The word of a number that needs more than 64 bits on the way.
    pub fn wide(&mut self, num: &Num, need: u32) -> At {
        let to = self.temporary();
        let (num, exact) = (num.clone(), need == EXACT);
        self.push(Op::Wide(to, Box::new(Wide { num, exact })));
        self.fresh = false;
        to
    }

    /// The word that holds the result of a number's operations.
    pub fn word(&mut self, ops: &[word::Op]) -> At {
        self.part(ops, ops.len() - 1, &mut [None; MAX_OPS])
    }

    /// The word that holds the result of one of a number's operations.
    pub fn part(&mut self, ops: &[word::Op], at: usize, results: &mut [Option<At>; MAX_OPS]) -> At {
        if let Some(result) = results[at] {
            return result;
        }
        let op = self.operands(ops, at, results);
        let result = self.value(op);
        results[at] = Some(result);
        result
    }

    /// The word that holds the result of an operation on words.
    pub fn value(&mut self, op: word::Op) -> At {
        self.fresh = false;
        if let word::Op::Field(slot) = op
            && let (false, Some(Place::Word(at))) = (slot.signed, slot.place())
        {
            self.bits.insert(at, slot.width);
            return at;
        }
        let bits = op.bits(|at| self.bits(at));
        let (to, mask) = (self.temporary(), u64::MAX);
        self.bits.insert(to, bits);
        self.push(Op::Compute { to, mask, op });
        self.fresh = true;
        to
    }

    /// One of a number's operations, on words.
    pub fn operands(
        &mut self,
        ops: &[word::Op],
        at: usize,
        results: &mut [Option<At>; MAX_OPS],
    ) -> word::Op {
        for operand in ops[at].operands() {
            self.part(ops, operand.into(), results);
        }
        ops[at].moved(|at| results[usize::from(at)].unwrap_or_default())
    }
}

/// The extraction of a header of fixed length that is in no union.
fn extraction(header: usize, layout: &Layout) -> Option<Op> {
    let (instance, shape) = (&layout.instances[header], layout.shape(header));
    let plain = shape.varbit.is_none() && instance.siblings.is_empty();
    let bytes = u16::try_from(shape.bytes).ok().filter(|_| plain)?;
    let base = u16::try_from(instance.base).ok()?;
    base.checked_add(bytes)?;
    let valid = u16::try_from(WORK + header).ok()?;
    Some(Op::Extract { base, valid, bytes })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::super::{Engine, Limits, QueueInfo};

    fn sum(left: Value, right: Value) -> Value {
        json!({"type": "expression", "value": {"op": "+", "left": left, "right": right}})
    }

    fn field(header: &str, field: &str) -> Value {
        json!({"type": "field", "value": [header, field]})
    }

    fn assign(to: Value, value: Value) -> Value {
        json!({"op": "assign", "parameters": [to, value]})
    }

    /// Runs assignments instead of those of the program `sums`, with `a`, `b` and `n`. Returns its first two fields.
    fn run(assignments: Vec<Value>, operands: [u8; 3]) -> [u32; 2] {
        let out = frame_of(assignments, operands);
        [9, 13].map(|at| u32::from_be_bytes(*out[at..].first_chunk().unwrap()))
    }

    /// The same; returns the frame.
    fn frame_of(assignments: Vec<Value>, [a, b, n]: [u8; 3]) -> Vec<u8> {
        let program = include_bytes!("../../tests/programs/sums.json");
        let mut program: Value = serde_json::from_slice(program).unwrap();
        program["header_types"][0]["fields"] = json!([["tmp", 64, false]]);
        program["register_arrays"] = json!([{"name": "empty", "id": 0, "size": 1, "bitwidth": 0}]);
        let narrow = program["actions"][0]["primitives"].as_array_mut().unwrap();
        narrow.truncate(1);
        narrow.extend(assignments);
        let program = serde_json::to_vec(&program).unwrap();
        let mut engine = Engine::load_bare(&program, Limits::default()).unwrap();
        let mut frame = [0; 9];
        (frame[3], frame[7], frame[8]) = (a, b, n);
        let (mut copies, mut out) = (Vec::new(), Vec::new());
        engine.ingress(1, &frame, 0, &mut copies);
        engine.egress(
            copies.remove(0),
            QueueInfo::default(),
            0,
            &mut out,
            &mut copies,
        );
        out
    }

    /// Behind the limit on repeated actions, nodes call them.
    #[test]
    fn a_long_program_calls_its_actions() {
        let [a, n] = ["a", "n"].map(|name| field("operands", name));
        let tmp = || field("scalars", "tmp");
        let total = |count: usize| {
            let mut assignments = vec![assign(tmp(), a.clone())];
            assignments.extend((0..count).map(|_| assign(tmp(), sum(tmp(), n.clone()))));
            assignments.push(assign(field("narrow", "sum"), tmp()));
            frame_of(assignments, [7, 2, 3])
        };
        let long = total(1 << 15);
        assert_eq!(long[9..13], (7 + 3 * (1_u32 << 15)).to_be_bytes());
        let short = total(1);
        assert_eq!((&long[..9], &long[13..]), (&short[..9], &short[13..]));
    }

    /// `tmp = a + b; sum = tmp + n; difference = tmp`: the second sum begins with the result of the first.
    #[test]
    fn a_sum_that_is_stored_does_not_become_a_part_of_the_next() {
        let [a, b, n] = ["a", "b", "n"].map(|name| field("operands", name));
        let tmp = field("scalars", "tmp");
        let assignments = vec![
            assign(tmp.clone(), sum(a, b)),
            assign(field("narrow", "sum"), sum(tmp.clone(), n)),
            assign(field("narrow", "difference"), tmp),
        ];
        assert_eq!(run(assignments, [1, 2, 3]), [6, 3]);
    }

    /// `tmp = 5; register_read(tmp, empty, 0); sum = tmp`.
    #[test]
    fn a_register_cell_without_bits_is_zero() {
        let number = |value: &str| json!({"type": "hexstr", "value": value});
        let tmp = field("scalars", "tmp");
        let register = json!({"type": "register_array", "value": "empty"});
        let assignments = vec![
            assign(tmp.clone(), number("0x5")),
            json!({"op": "register_read", "parameters": [tmp, register, number("0x0")]}),
            assign(field("narrow", "sum"), tmp),
        ];
        assert_eq!(run(assignments, [0; 3]), [0, 0]);
    }
}
