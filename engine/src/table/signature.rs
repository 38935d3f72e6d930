//! An action for the control plane: its id, its parameters, and where tables allow it.

use super::super::bits::{SLACK, Slot};
use super::super::error::{ControlError, ErrorKind};
use super::super::p4info::ActionScope;
use super::super::value::check_bytes;
use super::entry::ActionCall;
use super::key::Owner;

/// An action for the control plane.
#[derive(Debug, Clone)]
pub(crate) struct Signature {
    /// Its P4Info id.
    pub id: u32,
    pub params: Vec<TableParam>,
    /// Bytes of its arguments.
    pub args_bytes: usize,
    pub scope: ActionScope,
}

#[derive(Debug, Clone)]
pub(crate) struct TableParam {
    /// Its P4Info id.
    pub id: u32,
    pub name: String,
    /// Its place among the arguments.
    pub slot: Slot,
}

impl Signature {
    /// Checks the action's scope.
    pub fn check_scope(&self, owner: Owner, forbidden: ActionScope) -> Result<(), ControlError> {
        if self.scope != forbidden {
            return Ok(());
        }
        let what = match forbidden {
            ActionScope::DefaultOnly => "it can only be the default action",
            _ => "it cannot be the default action",
        };
        let text = format!("{owner}: action {:#010x}: {what}", self.id);
        Err(ControlError::new(ErrorKind::PermissionDenied, text))
    }

    /// Arguments by parameter id, as the action reads them.
    pub fn arguments(&self, owner: Owner, call: &ActionCall) -> Result<Box<[u8]>, ControlError> {
        let wrong = |what: String| {
            let action = call.action;
            ControlError::invalid(format!("{owner}: action {action:#010x}: {what}"))
        };
        for (index, (id, _)) in call.params.iter().enumerate() {
            if !self.params.iter().any(|param| param.id == *id) {
                return Err(wrong(format!("it has no parameter {id}")));
            }
            if call.params[..index].iter().any(|(other, _)| other == id) {
                return Err(wrong(format!("parameter {id} is given twice")));
            }
        }
        let values = self.params.iter().map(|param| {
            let given = call.params.iter().find(|(id, _)| *id == param.id);
            given.map(|(_, value)| value.as_slice()).ok_or_else(|| {
                let what = format!("parameter {} ({}) is missing", param.id, param.name);
                wrong(what)
            })
        });
        self.positional(owner, &values.collect::<Result<Vec<_>, _>>()?)
    }

    /// Arguments in the order of the parameters, of which there must be as many.
    pub fn positional(
        &self,
        owner: Owner,
        values: &[impl AsRef<[u8]>],
    ) -> Result<Box<[u8]>, ControlError> {
        let mut args = vec![0; self.args_bytes.max(SLACK)];
        for (param, value) in self.params.iter().zip(values) {
            let what = || format!("{owner}: parameter {} of its action", param.name);
            check_bytes(value.as_ref(), param.slot.width, what)?;
            param.slot.store_bytes(&mut args, value.as_ref());
        }
        Ok(args.into())
    }

    /// Returns the call with these arguments, in canonical form.
    pub fn call(&self, args: &[u8]) -> ActionCall {
        let params = self.params.iter();
        ActionCall {
            action: self.id,
            params: params
                .map(|param| (param.id, param.slot.canonical(args)))
                .collect(),
        }
    }
}
