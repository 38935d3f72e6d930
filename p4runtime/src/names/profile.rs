//! Action profiles and selectors (§6.4.3, §9.2).

use super::{Action, Catalog, FieldError, NameError, P4InfoError, Table, array};
use crate::bytestring::Bytestring;
use crate::config::v1 as p4info;
use crate::v1::{self, action_profile_group};
use std::sync::Arc;

/// An action profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionProfile {
    /// Number in messages.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// Actions of the profile's tables, which members may have.
    pub actions: Vec<Arc<Action>>,
    /// True if the profile has a selector, and so groups.
    pub has_selector: bool,
    /// Number of members, or of members in all groups, that the program reserves.
    pub size: u64,
}

impl ActionProfile {
    pub(super) fn new(
        id: u32,
        name: &str,
        profile: &p4info::ActionProfile,
        tables: &Catalog<Table>,
    ) -> Result<Self, P4InfoError> {
        let place = format!("action profile \"{name}\"");
        let mut actions: Vec<Arc<Action>> = Vec::new();
        for id in &profile.table_ids {
            let table = tables.by_id(*id).ok_or_else(|| P4InfoError::NoTable {
                place: place.clone(),
                id: *id,
            })?;
            for (_, action) in &table.actions {
                if !actions.iter().any(|known| known.id == action.id) {
                    actions.push(Arc::clone(action));
                }
            }
        }
        Ok(ActionProfile {
            id,
            name: name.into(),
            actions,
            has_selector: profile.with_selector,
            size: array::size(&place, profile.size)?,
        })
    }

    /// Returns a member with an action.
    ///
    /// # Errors
    /// [`FieldError`] when the profile's tables do not have the action, or a parameter is unknown,
    /// missing, given twice or too narrow.
    pub fn member(
        &self,
        member_id: u32,
        action: &str,
        values: &[(&str, Bytestring)],
    ) -> Result<v1::ActionProfileMember, FieldError> {
        let mut actions = self.actions.iter();
        let found = actions.find(|known| known.name == action || known.alias == action);
        let found = found.ok_or_else(|| {
            let existing = self.actions.iter().map(|action| action.name.as_str());
            let place = format!("action profile \"{}\"", self.name);
            NameError::new(place, "action", action, existing)
        })?;
        Ok(v1::ActionProfileMember {
            action_profile_id: self.id,
            member_id,
            action: Some(found.call(values)?),
        })
    }

    /// Returns a group of members, each with its id and weight.
    pub fn group(
        &self,
        group_id: u32,
        members: impl IntoIterator<Item = (u32, i32)>,
    ) -> v1::ActionProfileGroup {
        let member = |(member_id, weight)| action_profile_group::Member {
            member_id,
            weight,
            watch_kind: None,
        };
        v1::ActionProfileGroup {
            action_profile_id: self.id,
            group_id,
            members: members.into_iter().map(member).collect(),
            max_size: 0,
        }
    }

    /// Returns the entity for a read of all members.
    pub fn all_members(&self) -> v1::ActionProfileMember {
        v1::ActionProfileMember {
            action_profile_id: self.id,
            ..Default::default()
        }
    }
}
