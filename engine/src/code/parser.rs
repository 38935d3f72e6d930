//! Compiles the parser and the checksums.

use super::super::expression::Comparison::{Equal, Less, NotEqual};
use super::super::expression::{EXACT, HeaderRef, Num};
use super::super::parser::{Case, State};
use super::super::word::{self, At};
use super::compile::{Compiler, Label};
use super::numbers::MAX_RESULTS;
use super::{Op, Site};

impl Compiler<'_> {
    /// Compiles the parser and the verification of checksums. Returns the labels of both.
    pub fn parser(&mut self) -> (Label, Label) {
        let parser = self.source.parser;
        let labels: Vec<_> = parser.states.iter().map(|_| self.label()).collect();
        let is_short = parser.is_short(self.source.max_states);
        let accept = self.label();
        for (at, state) in parser.states.iter().enumerate() {
            self.place(labels[at]);
            if !is_short {
                self.push(Op::Enter);
            }
            self.site(Site::State(at));
            self.action(state.block);
            self.site(Site::Select(at));
            self.select(state, |next| next.map_or(accept, |state| labels[state]));
        }
        self.place(accept);
        self.site(Site::Accept);
        self.checksums(true);
        self.push(Op::End);
        (parser.start.map_or(accept, |start| labels[start]), accept)
    }

    /// Compiles the verification or the update of checksums.
    pub fn checksums(&mut self, verify: bool) {
        for (at, checksum) in self.source.checksums.iter().enumerate() {
            let (at, done) = (at as u32, self.label());
            match verify {
                true if checksum.verify => {
                    self.restart();
                    self.compare(Equal, word::Op::Valid(checksum.header), 0, done);
                }
                false if checksum.update => {}
                _ => continue,
            }
            if let Some(condition) = &checksum.condition {
                self.jump(condition, false, done);
            }
            self.push(if verify {
                Op::Verify(at)
            } else {
                Op::Update(at)
            });
            self.bind(done);
        }
    }

    /// Compiles the transitions of a state.
    fn select(&mut self, state: &State, label: impl Fn(Option<usize>) -> Label) {
        let key = match state.transitions.is_empty() {
            true => Vec::new(),
            false => self.key(&state.key),
        };
        let kept = self.used;
        for transition in &state.transitions {
            let (other, to) = (self.label(), label(transition.next));
            match &transition.case {
                Case::Value { value, mask } => {
                    for (at, word) in key.iter().enumerate() {
                        // A mask has no bits that the field does not have.
                        let part = match mask[at].count_ones() == self.bits(*word) {
                            true => *word,
                            false => self.masked(*word, mask[at], kept),
                        };
                        match at + 1 == key.len() {
                            true => self.compare_word(Equal, part, value[at], to),
                            false => self.compare_word(NotEqual, part, value[at], other),
                        }
                    }
                    if key.is_empty() {
                        self.jump_always(true, to);
                    }
                }
                Case::Set(set) => {
                    for (index, at) in key.iter().enumerate() {
                        let (first, at) = (index == 0, *at);
                        self.push(Op::Key { first, at });
                    }
                    let (set, to) = (*set as u32, self.jumps_to(to));
                    self.push(Op::IfMember { set, to });
                }
            }
            self.bind(other);
        }
        self.push(Op::Goto(label(state.default)));
    }

    /// A word of a key under a mask. The first `kept` results stay.
    fn masked(&mut self, word: At, mask: u64, kept: usize) -> At {
        if self.used >= MAX_RESULTS {
            self.used = kept;
        }
        self.value(word::Op::AndConst(word, mask))
    }

    /// The words of a key. Ends the parser if the frame or a stack has no such part.
    fn key(&mut self, parts: &[Num]) -> Vec<At> {
        let errors = &self.source.parser.errors;
        for part in parts {
            match part {
                Num::Ahead(offset, width) => self.push(Op::Need((offset + width).div_ceil(8))),
                Num::Element(field) => {
                    if let HeaderRef::Element { stack, index, .. } = &field.header {
                        let (inside, index) = (self.label(), self.number(index, EXACT));
                        let size = self.source.layout.stacks[*stack].elements.len();
                        self.compare_word(Less, index, size as u64, inside);
                        let error = self.number(&Num::constant(errors.stack_out_of_bounds), EXACT);
                        self.push(Op::Stop(error));
                        self.bind(inside);
                    }
                }
                _ => {}
            }
        }
        let words = parts
            .iter()
            .flat_map(key_words)
            .map(|part| (word::low(&part, 64), part));
        let mut words: Vec<_> = words.collect();
        let few: Vec<_> = words.iter().flat_map(|(word, _)| word.clone()).collect();
        self.restart();
        let count: usize = few.iter().map(|ops| ops.len()).sum();
        if count > MAX_RESULTS || few.len() < words.len() {
            words
                .iter_mut()
                .for_each(|(word, _)| *word = word.take().filter(|it| it.len() == 1));
        }
        let words = words.into_iter().map(|(word, part)| match word {
            Some(word) => self.word(&word),
            None => self.wide(&part, 64),
        });
        words.collect()
    }
}

/// The words of a part of a key, the most significant first.
fn key_words(part: &Num) -> impl Iterator<Item = Num> {
    let width = part.bound().bits;
    let starts = (0..width.div_ceil(64)).rev().map(|word| word * 64);
    starts.filter_map(move |low| part.part(low, 64.min(width - low)))
}
