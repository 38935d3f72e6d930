//! Primitives of actions: translation from the file.

use std::cell::RefCell;
use std::collections::HashMap;

use super::action::{Action, Instruction, Param};
use super::bits::{SLACK, Slot};
use super::compile::Scope;
use super::error::LoadError;
use super::json::{self, Term};
use super::layout::Layout;
use super::octets::plural;

/// Positions of the objects that primitives name.
pub(super) struct Names<'a> {
    pub layout: &'a Layout,
    pub registers: &'a [(String, u32)],
    pub counters: HashMap<String, usize>,
    pub meters: HashMap<String, usize>,
    pub calculations: HashMap<String, usize>,
    /// Field lists by the ids that primitives give.
    pub field_lists: HashMap<u32, usize>,
    /// Learn lists by the ids that primitives give.
    pub learn_lists: HashMap<u32, usize>,
    /// Primitives of parser and deparser, each list as an action without a name.
    pub blocks: RefCell<Vec<Action>>,
    /// Position of the first of them among the program's actions.
    pub first_block: usize,
}

impl Names<'_> {
    pub fn scope<'s>(&'s self, params: &'s [Slot], at: &'s str) -> Scope<'s> {
        Scope {
            layout: self.layout,
            registers: self.registers,
            params,
            at,
        }
    }

    /// Translates an action.
    pub fn action(&self, action: &json::Action) -> Result<Action, LoadError> {
        let at = format!("action {}", action.name);
        let mut bytes = 0;
        let mut params = Vec::new();
        for param in &action.runtime_data {
            let slot = Slot::new(bytes * 8, param.bitwidth, false);
            bytes += slot.bytes();
            let what = "size of its parameters in bytes";
            LoadError::check(what, bytes as u64, MAX_ARGS, &at)?;
            params.push(Param {
                name: param.name.clone(),
                slot,
            });
        }
        let slots: Vec<_> = params.iter().map(|param| param.slot).collect();
        let code = self.code(&action.primitives, &slots, &at)?;
        let (name, args_bytes) = (action.name.clone(), bytes + SLACK);
        Ok(Action {
            name,
            id: action.id,
            params,
            args_bytes,
            code,
        })
    }

    /// Adds instructions of the parser or deparser. Returns their position among the program's actions.
    pub fn block(&self, code: Vec<Instruction>) -> usize {
        let mut blocks = self.blocks.borrow_mut();
        blocks.push(Action {
            name: String::new(),
            id: 0,
            params: Vec::new(),
            args_bytes: SLACK,
            code,
        });
        self.first_block + blocks.len() - 1
    }

    /// Translates a sequence of primitives.
    pub fn code(
        &self,
        primitives: &[json::Primitive],
        params: &[Slot],
        at: &str,
    ) -> Result<Vec<Instruction>, LoadError> {
        let mut code = Vec::new();
        for primitive in primitives {
            let at = format!("{at}, {}", primitive.op);
            code.push(self.primitive(primitive, primitives.len(), &self.scope(params, &at))?);
        }
        Ok(code)
    }

    /// Translates one of `length` primitives.
    pub fn primitive(
        &self,
        primitive: &json::Primitive,
        length: usize,
        scope: &Scope,
    ) -> Result<Instruction, LoadError> {
        let terms = primitive
            .parameters
            .iter()
            .map(|json| Term::parse(json, scope.at));
        let terms = terms.collect::<Result<Vec<_>, _>>()?;
        Ok(match (primitive.op.as_str(), terms.as_slice()) {
            ("assign" | "set" | "modify_field", [to, value]) => {
                let place = scope.field(to)?;
                let value = match scope.kind_is_bool(value) {
                    true => scope.bit(value)?,
                    false => scope.stored(value, place.width())?,
                };
                Instruction::Assign(place, value)
            }
            ("assign_header", [to, from]) => {
                let (to, from) = (scope.header(to)?, scope.header(from)?);
                alike(&[scope.sample(&to)], &[scope.sample(&from)], scope)?;
                Instruction::AssignHeader { to, from }
            }
            ("assign_union", [to, from]) => {
                let (to, from) = (scope.union(to)?, scope.union(from)?);
                alike(&to, &from, scope)?;
                Instruction::AssignHeaders(to.into_iter().zip(from).collect())
            }
            ("assign_header_stack" | "assign_union_stack", [to, from]) => {
                let (to, from) = (scope.stack(to)?, scope.stack(from)?);
                let headers = |stack: usize| scope.layout.stacks[stack].elements.concat();
                alike(&headers(to), &headers(from), scope)?;
                Instruction::AssignStack { to, from }
            }
            ("assign_VL", [to, from]) => Instruction::AssignVarbit {
                to: varbit(to, scope)?,
                from: varbit(from, scope)?,
            },
            ("add_header", [header]) => Instruction::AddHeader(scope.header(header)?),
            ("remove_header", [header]) => Instruction::RemoveHeader(scope.header(header)?),
            ("push", [stack, count]) => Instruction::Push {
                stack: scope.stack(stack)?,
                count: scope.number(count)?,
            },
            ("pop", [stack, count]) => Instruction::Pop {
                stack: scope.stack(stack)?,
                count: scope.number(count)?,
            },
            // Not always standard_metadata itself: p4c also passes a copy that it copies back.
            ("mark_to_drop", [Term::Header(header)]) => Instruction::MarkToDrop {
                egress_spec: scope.layout.field(header, "egress_spec", scope.at)?,
                mcast_grp: scope.layout.field_if_any(header, "mcast_grp"),
            },
            ("count", [Term::CounterArray(counter), index]) => {
                let counter = find(&self.counters, counter, "counter array", scope)?;
                Instruction::Count {
                    counter,
                    index: scope.number(index)?,
                }
            }
            ("execute_meter", [Term::MeterArray(meter), index, color]) => {
                let meter = find(&self.meters, meter, "meter array", scope)?;
                let (index, color) = (scope.number(index)?, scope.field(color)?);
                Instruction::Meter {
                    meter,
                    index,
                    color,
                }
            }
            ("register_read", [to, Term::RegisterArray(register), index]) => {
                let (to, register) = (scope.field(to)?, scope.register(register)?);
                Instruction::RegisterRead {
                    to,
                    register,
                    index: scope.number(index)?,
                }
            }
            ("register_write", [Term::RegisterArray(register), index, value]) => {
                let register = scope.register(register)?;
                let width = self.registers[register].1;
                let (index, value) = (scope.number(index)?, scope.stored(value, width)?);
                Instruction::RegisterWrite {
                    register,
                    width,
                    index,
                    value,
                }
            }
            (
                "modify_field_with_hash_based_offset",
                [to, base, Term::Calculation(calculation), size],
            ) => {
                let calculation = find(&self.calculations, calculation, "calculation", scope)?;
                let (base, size) = (scope.number(base)?, scope.number(size)?);
                Instruction::Hash {
                    to: scope.field(to)?,
                    base,
                    calculation,
                    size,
                }
            }
            ("modify_field_rng_uniform", [to, low, high]) => {
                let (low, high) = (scope.number(low)?, scope.number(high)?);
                Instruction::Random {
                    to: scope.field(to)?,
                    low,
                    high,
                }
            }
            ("clone_ingress_pkt_to_egress" | "clone_egress_pkt_to_egress", [session, fields]) => {
                let (session, fields) = (scope.number(session)?, self.fields(fields, scope)?);
                Instruction::Clone { session, fields }
            }
            ("resubmit", [fields]) => Instruction::Resubmit {
                fields: self.fields(fields, scope)?,
            },
            ("recirculate", [fields]) => Instruction::Recirculate {
                fields: self.fields(fields, scope)?,
            },
            ("truncate", [length]) => Instruction::Truncate(scope.number(length)?),
            ("_jump", [to]) => Instruction::Jump(target(to, length, scope)?),
            ("_jump_if_zero", [test, to]) => {
                Instruction::JumpUnless(scope.test_or_data(test)?, target(to, length, scope)?)
            }
            ("exit", []) => Instruction::Exit,
            ("assert" | "assume", [test]) => Instruction::Assert(scope.test_or_data(test)?),
            ("log_msg", [Term::String(format), Term::Parameters(values)]) => {
                let values = values.iter().map(|value| match scope.kind_is_bool(value) {
                    true => scope.bit(value),
                    false => scope.number(value),
                });
                let values = values.collect::<Result<_, _>>()?;
                Instruction::Log {
                    format: format.clone(),
                    values,
                }
            }
            // v1model's receiver has no meaning to simple_switch either.
            ("generate_digest", [_receiver, list]) => {
                Instruction::Digest(find_list(&self.learn_lists, list, "learn list", scope)?)
            }
            (op, terms) => {
                let parameters = plural(terms.len() as u64, "parameter");
                let what = format!("primitive {op} with {parameters}");
                return Err(LoadError::unsupported(what, scope.at));
            }
        })
    }

    fn fields(&self, term: &Term, scope: &Scope) -> Result<usize, LoadError> {
        find_list(&self.field_lists, term, "field list", scope)
    }
}

/// Bytes of an action's arguments: every entry has room for them.
const MAX_ARGS: u64 = 1 << 13;

fn find(
    names: &HashMap<String, usize>,
    name: &str,
    kind: &str,
    scope: &Scope,
) -> Result<usize, LoadError> {
    LoadError::found(names.get(name).copied(), kind, name, scope.at)
}

/// The list that a primitive names by its id.
fn find_list(
    lists: &HashMap<u32, usize>,
    term: &Term,
    kind: &str,
    scope: &Scope,
) -> Result<usize, LoadError> {
    let id = scope.constant(term)?;
    let known = u32::try_from(&id).ok();
    let found = known.and_then(|id| lists.get(&id).copied());
    LoadError::found(found, kind, id, scope.at)
}

/// Headers are assigned as they stand in the packet's vector, so they must be of one type.
fn alike(to: &[usize], from: &[usize], scope: &Scope) -> Result<(), LoadError> {
    let shapes = |headers: &[usize]| -> Vec<usize> {
        headers
            .iter()
            .map(|header| scope.layout.instances[*header].shape)
            .collect()
    };
    if shapes(to) == shapes(from) {
        return Ok(());
    }
    Err(LoadError::malformed(
        "the two sides are of different types",
        scope.at,
    ))
}

/// Jumps go to a primitive of the same action, or behind the last one.
fn target(term: &Term, length: usize, scope: &Scope) -> Result<usize, LoadError> {
    let to = scope.constant(term)?;
    usize::try_from(&to)
        .ok()
        .filter(|to| *to <= length)
        .ok_or_else(|| {
            LoadError::malformed(format!("it jumps to {to} of {length} primitives"), scope.at)
        })
}

/// The header whose variable-length field a term names.
fn varbit(term: &Term, scope: &Scope) -> Result<usize, LoadError> {
    if let Term::Field(header, field) = term {
        let instance = scope.layout.find(header, scope.at)?;
        let shape = scope.layout.shape(instance);
        if shape
            .varbit
            .is_some_and(|varbit| shape.fields[varbit.field].name == *field)
        {
            return Ok(instance);
        }
    }
    Err(LoadError::malformed(
        format!("{term:?} is not a variable-length field"),
        scope.at,
    ))
}
