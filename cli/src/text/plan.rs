//! The result of `ultima fabric plan`.

use ultima_api::document::{Difference, Plan, PlannedJob, PlannedSwitch};
use ultima_console::output::table;
use ultima_console::units::counted;

use super::Text;

impl Text for Plan<'_> {
    /// The jobs with their trees, the changes on each switch as `diff` prints them, and a table of the resources whose usage changes.
    fn text(&self) -> String {
        let mut text: String = self.jobs.iter().map(PlannedJob::text).collect();
        text.extend(self.switches.iter().map(PlannedSwitch::text));
        let rows = self.switches.iter().flat_map(|switch| {
            let changed = switch.usage.iter().filter(|it| it.before != it.after);
            changed.map(|it| {
                [
                    switch.switch.to_owned(),
                    it.resource.to_owned(),
                    it.before.to_string(),
                    it.after.to_string(),
                    it.limit.to_string(),
                ]
            })
        });
        let rows: Vec<[String; 5]> = rows.collect();
        match rows.is_empty() {
            true => text,
            false => {
                let header = ["SWITCH", "RESOURCE", "BEFORE", "AFTER", "LIMIT"];
                text + "\n" + &table(header, rows.into_iter())
            }
        }
    }
}

impl Text for PlannedJob<'_> {
    fn text(&self) -> String {
        let name = self.name;
        if !self.rejection.is_empty() {
            return format!("{name}: would be rejected: {}\n", self.rejection);
        }
        let action = self.action.as_ref().map(Text::text);
        let Some(job) = &self.job else {
            return format!("{name}: {}\n", action.unwrap_or_default());
        };
        let job = &job.status;
        let action = action.map_or_else(String::new, |action| format!("{action}, "));
        let mut text = format!(
            "{name}: {action}id {} on {}",
            job.id,
            job.switches.join(", ")
        );
        if !job.tree.is_empty() {
            text += &format!("; tree {}", job.tree.join(", "));
        }
        match self.transit_switches.as_deref().unwrap_or_default() {
            [] => {}
            switches => text += &format!("; via {}", switches.join(", ")),
        }
        text + "\n"
    }
}

impl Text for PlannedSwitch<'_> {
    fn text(&self) -> String {
        let switch = self.switch;
        let head = match (self.added, self.removed, self.differences.len()) {
            (_, true, _) => {
                format!("{switch}: removed from the fabric; its entries stay on the switch\n")
            }
            (true, ..) => format!(
                "{switch}: added to the fabric; the controller installs Ultima's P4 program there, or leaves it alone if it runs another (--replace-pipeline)\n"
            ),
            (_, _, 0) => format!("{switch}: no changes\n"),
            (_, _, count) => format!("{switch}: {}\n", counted(count, "change")),
        };
        let problem = match self.problem {
            "" => String::new(),
            problem => format!("{switch}: not connected: {problem}\n"),
        };
        let changes = self.differences.iter().map(Difference::text);
        problem + &head + &changes.collect::<String>()
    }
}
