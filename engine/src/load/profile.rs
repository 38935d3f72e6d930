//! Loads action profiles: selectors from the file, sizes from P4Info, actions from their tables.

use super::super::checksum::Calculation;
use super::super::error::LoadError;
use super::super::json;
use super::super::layout::Layout;
use super::super::limits::Limits;
use super::super::p4info::{P4Info, ProfileInfo};
use super::super::profile::{Declaration, Profile, Selector};
use super::super::table::{Signature, TableAction};
use super::check_size;

/// The profiles of a file while its tables are loaded.
pub(super) struct Profiles<'a> {
    found: Vec<Found<'a>>,
}

struct Found<'a> {
    profile: &'a json::ActionProfile,
    /// `None` without a P4Info. Then the profile stays empty.
    listed: Option<&'a ProfileInfo>,
    /// Those of its tables; `None` before the first of them.
    actions: Option<Vec<Signature>>,
}

/// A profile as a table refers to it.
pub(super) struct Attached {
    /// The profile's position.
    pub profile: usize,
    /// Positions of its actions among the table's.
    pub actions: Vec<usize>,
}

impl<'a> Profiles<'a> {
    pub fn new(
        file: &'a json::Program,
        p4info: Option<&'a P4Info>,
    ) -> Result<Profiles<'a>, LoadError> {
        let profiles = file.pipelines.iter().flat_map(|p| &p.action_profiles);
        let found = profiles.map(|profile| {
            let name = &profile.name;
            let missing = || LoadError::p4info(format!("the P4Info has no action profile {name}"));
            let find = |p4info: &'a P4Info| p4info.profiles.get(name).ok_or_else(missing);
            let listed = p4info.map(find).transpose()?;
            let with_selector = profile.selector.is_some();
            if listed.is_some_and(|listed| listed.with_selector != with_selector) {
                let what = format!("only one of them gives action profile {name} a selector");
                return Err(LoadError::p4info(what));
            }
            Ok(Found {
                profile,
                listed,
                actions: None,
            })
        });
        let found = found.collect::<Result<_, _>>()?;
        Ok(Profiles { found })
    }

    /// Refers a table to its profile. All tables of a profile have the same actions.
    pub fn attach(
        &mut self,
        table: &json::Table,
        listed: Option<u32>,
        actions: &[TableAction],
        at: &str,
    ) -> Result<Attached, LoadError> {
        let name = table.action_profile.as_deref();
        let name = name.ok_or_else(|| LoadError::malformed("no action_profile", at))?;
        let found = self.found.iter().position(|one| one.profile.name == name);
        let profile = LoadError::found(found, "action profile", name, at)?;
        let Some(info) = self.found[profile].listed else {
            let actions = Vec::new();
            return Ok(Attached { profile, actions });
        };
        if Some(info.id) != listed {
            let what = format!("{at} has action profile {name}, in the P4Info another or none");
            return Err(LoadError::p4info(what));
        }
        let signatures = actions.iter().map(|action| action.signature.clone());
        let known = self.found[profile]
            .actions
            .get_or_insert_with(|| signatures.collect());
        let position = |known: &Signature| {
            let same = |action: &TableAction| action.signature.id == known.id;
            actions.iter().position(same)
        };
        let positions: Option<Vec<usize>> = known.iter().map(position).collect();
        let positions = positions.filter(|positions| positions.len() == actions.len());
        let actions = positions.ok_or_else(|| {
            let what = format!("the tables of action profile {name} have different actions");
            LoadError::malformed(what, at)
        })?;
        Ok(Attached { profile, actions })
    }

    /// The profiles, empty.
    pub fn build(self, layout: &Layout, limits: &Limits) -> Result<Vec<Profile>, LoadError> {
        let built = self.found.into_iter().map(|found| {
            let profile = found.profile;
            let (id, size, max_group_size) = (found.listed).map_or((0, 0, 0), |listed| {
                (listed.id, listed.size, listed.max_group_size)
            });
            let at = format!("action profile {}", profile.name);
            check_size("number of members", size, limits.table_entries, &at)?;
            let selector = profile.selector.as_ref().map(|selector| {
                Ok(Selector {
                    hash: Calculation::of_selector(&profile.name, selector, layout)?,
                    max_group_size: max_group_size as usize,
                })
            });
            Ok(Profile::new(Declaration {
                id,
                name: profile.name.clone(),
                actions: found.actions.unwrap_or_default(),
                selector: selector.transpose()?,
                size: size as usize,
                max_groups: limits.profile_groups,
                max_weight: limits.profile_weight.min(size as usize),
            }))
        });
        built.collect()
    }
}
