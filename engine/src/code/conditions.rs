//! Compiles conditions to jumps.

use super::super::expression::Comparison::{self, Equal, Less, NotEqual};
use super::super::expression::Test;
use super::super::word::{self, At, MAX_OPS};
use super::Op;
use super::compile::{Compiler, Label};

impl Compiler<'_> {
    /// Goes to a label if the condition is `holds`, else on.
    pub fn jump(&mut self, test: &Test, holds: bool, to: Label) {
        match test {
            Test::Const(value) => self.jump_always(*value == holds, to),
            Test::Not(test) => self.jump(test, !holds, to),
            // One side decides.
            Test::And(sides) if !holds => {
                self.jump(&sides.0, false, to);
                self.jump(&sides.1, false, to);
            }
            Test::Or(sides) if holds => {
                self.jump(&sides.0, true, to);
                self.jump(&sides.1, true, to);
            }
            Test::And(sides) | Test::Or(sides) => {
                let on = self.label();
                self.jump(&sides.0, !holds, on);
                self.jump(&sides.1, holds, to);
                self.bind(on);
            }
            test => match word::of_test(test) {
                Some(ops) => {
                    self.restart();
                    match *ops {
                        [word::Op::Const(value)] => self.jump_always((value != 0) == holds, to),
                        _ => self.jump_by(&ops, holds, to),
                    }
                }
                None => {
                    let (test, to) = (Box::new(test.clone()), self.jumps_to(to));
                    self.push(Op::IfTest { holds, to, test });
                }
            },
        }
    }

    pub fn jump_always(&mut self, jumps: bool, to: Label) {
        if jumps {
            let to = self.jumps_to(to);
            self.push(Op::Goto(to));
        }
    }

    /// Goes to a label if the last of some operations, a condition, is `holds`.
    fn jump_by(&mut self, ops: &[word::Op], mut holds: bool, to: Label) {
        let mut last = ops.len() - 1;
        while let word::Op::Negate(at) = ops[last] {
            (last, holds) = (at.into(), !holds);
        }
        let results = &mut [None; MAX_OPS];
        let (how, a, b) = match ops[last] {
            word::Op::Equal(a, b) => (Equal, a, b),
            word::Op::Less(a, b) | word::Op::LessUnsigned(a, b) => (Less, a, b),
            word::Op::EqualConst(a, value) => {
                let op = self.operands(ops, a.into(), results);
                return self.compare(Equal.or_not(holds), op, value, to);
            }
            _ => {
                let op = self.operands(ops, last, results);
                return self.compare(NotEqual.or_not(holds), op, 0, to);
            }
        };
        let signed = matches!(ops[last], word::Op::Less(..));
        for (how, value, other) in [(how, b, a), (how.reversed(), a, b)] {
            if let word::Op::Const(value) = ops[usize::from(value)] {
                let op = self.operands(ops, other.into(), results);
                let bits = op.bits(|at| self.bits(at));
                if !signed || value >> 63 == 0 && bits < 64 {
                    return self.compare(how.or_not(holds), op, value, to);
                }
            }
        }
        let b = self.part(ops, b.into(), results);
        let a = self.part(ops, a.into(), results);
        if signed && self.bits(a).max(self.bits(b)) > 63 {
            let less = self.value(word::Op::Less(a, b));
            return self.compare_word(NotEqual.or_not(holds), less, 0, to);
        }
        let (how, to) = (how.or_not(holds), self.jumps_to(to));
        self.push(Op::IfWords { how, a, b, to });
    }

    /// Goes to a label if the result of an operation compares like this.
    pub fn compare(&mut self, how: Comparison, op: word::Op, value: u64, to: Label) {
        let at = self.value(op);
        self.compare_word(how, at, value, to);
    }

    pub fn compare_word(&mut self, how: Comparison, at: At, value: u64, to: Label) {
        let to = self.jumps_to(to);
        self.push(Op::If { how, at, to, value });
    }
}
