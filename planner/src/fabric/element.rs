//! Names of a fabric's elements, as operators write them and the store keeps them.

use super::{Element, Fabric, LinkEnd, SwitchId, SwitchPort, TrunkId};
use crate::names::some_of;

/// A name that no element has, with the names that would be right.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownElement(String);

impl Fabric {
    /// Finds a switch by name, with an error that lists the known switches.
    ///
    /// # Errors
    /// No switch has the name.
    pub fn switch_called(&self, name: &str) -> Result<SwitchId, UnknownElement> {
        self.switch_named(name).ok_or_else(|| {
            let known = some_of(self.switches().iter().map(|switch| &switch.name));
            UnknownElement(format!("unknown switch {name:?} (the fabric has {known})"))
        })
    }

    /// Finds an element by name: `SWITCH` for a switch's transit traffic ([`Element::Transit`]),
    /// `SWITCH/PORT` for a port, both ends for a link between switches. A port with a link to
    /// another switch stands for that link.
    ///
    /// # Errors
    /// No element has the name.
    pub fn element_named(&self, name: &str) -> Result<Element, UnknownElement> {
        let unknown = |why: String| {
            UnknownElement(format!(
                "unknown element {name:?}: {why}; name a switch (s1), a port (s1/9) or a link between switches (s1/9-s2/9)"
            ))
        };
        if let Some(switch) = self.switch_named(name) {
            return Ok(Element::Transit(switch));
        }
        // Names may contain dashes, so the first dash after the first port separates the ends.
        let dash = name.find('/').and_then(|slash| {
            let dash = name[slash..].find('-')?;
            Some(slash + dash)
        });
        let Some(dash) = dash else {
            let port = self.port_named(name).map_err(unknown)?;
            return Ok(match self.trunk_at(port) {
                Some(trunk) => Element::Trunk(trunk),
                None => Element::Port(port),
            });
        };
        let [one, other] =
            [&name[..dash], &name[dash + 1..]].map(|end| self.port_named(end).map_err(unknown));
        let (one, other) = (one?, other?);
        match self.trunk_at(one) {
            Some(trunk) if self.across(one) == Some(other) => Ok(Element::Trunk(trunk)),
            _ => Err(unknown("no link joins these ports".into())),
        }
    }

    /// An element's name, as [`element_named`](Self::element_named) accepts it, independent of the file's
    /// order.
    pub fn name_of(&self, element: Element) -> String {
        let port = |at: SwitchPort| self.port_name(at);
        match element {
            Element::Switch(switch) | Element::Transit(switch) => self.switch(switch).name.clone(),
            Element::Port(at) => port(at),
            Element::Trunk(trunk) => self.sorted_ends(trunk).map(port).join("-"),
        }
    }

    /// A trunk's two ends by name, independent of the file's order.
    pub fn sorted_ends(&self, trunk: TrunkId) -> [SwitchPort; 2] {
        let name = |end: &SwitchPort| self.switch(end.switch).name.as_str();
        let mut ends = self.trunk(trunk).ends;
        ends.sort_by(|one, other| (name(one), one.port).cmp(&(name(other), other.port)));
        ends
    }

    /// Finds a port with a link, or returns what is unknown.
    fn port_named(&self, name: &str) -> Result<SwitchPort, String> {
        let (switch, label) = name
            .split_once('/')
            .ok_or_else(|| format!("unknown switch {}", seen(name)))?;
        let Some(id) = self.switch_named(switch) else {
            return Err(format!("unknown switch {}", seen(switch)));
        };
        let port = self.switch(id).port_labelled(label);
        let port = port.map(|port| SwitchPort { switch: id, port });
        let mut ends = self.links().iter().flat_map(|link| link.ends);
        port.filter(|port| ends.any(|end| end == LinkEnd::Port(*port)))
            .ok_or_else(|| format!("switch {switch} has no link at port {}", seen(label)))
    }
}

/// A name in a message; an empty one in quotes.
fn seen(name: &str) -> &str {
    match name {
        "" => "\"\"",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::PortNumber;

    #[test]
    fn link_names_do_not_depend_on_the_order_of_ends() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        for text in [text, &text.replace("[s1/9, s2/9]", "[s2/9, s1/9]")] {
            let fabric = crate::fabric::parse(text, "two.yaml").unwrap();
            assert_eq!(fabric.name_of(Element::Trunk(TrunkId(0))), "s1/9-s2/9");
            let ends = fabric
                .sorted_ends(TrunkId(0))
                .map(|end| fabric.port_name(end));
            assert_eq!(ends, ["s1/9", "s2/9"]);
        }
    }

    #[test]
    fn unknown_switches_list_the_known_ones() {
        let trunks: Vec<_> = (0..9).map(|switch| (switch, switch + 1, "")).collect();
        let fabric = crate::testing::fabric_of(10, &[(0, 1)], &trunks);
        assert_eq!(fabric.switch_called("s9"), Ok(SwitchId(9)));
        assert_eq!(
            fabric.switch_called("s10\n").unwrap_err().to_string(),
            "unknown switch \"s10\\n\" (the fabric has s0, s1, s2, s3, s4, s5, s6, s7 and 2 more)"
        );
    }

    #[test]
    fn elements_are_found_by_name() {
        let text = include_str!("../../../topologies/two-switches.yaml").replace("s2", "s-2");
        let fabric = crate::fabric::parse(&text, "two.yaml").unwrap();
        let trunk = Element::Trunk(TrunkId(0));
        let host = Element::Port(SwitchPort {
            switch: SwitchId(0),
            port: PortNumber(1),
        });
        for (name, element) in [
            ("s-2", Element::Transit(SwitchId(1))),
            ("s1/1", host),
            ("s1/9", trunk),
            ("s-2/9", trunk),
            ("s-2/9-s1/9", trunk),
            ("s1/9-s-2/9", trunk),
        ] {
            assert_eq!(fabric.element_named(name), Ok(element), "{name}");
            assert_eq!(fabric.element_named(&fabric.name_of(element)), Ok(element));
        }
        for (name, why) in [
            ("s3", "unknown switch s3"),
            ("s3/1", "unknown switch s3"),
            ("s1/7", "switch s1 has no link at port 7"),
            ("s1/x", "switch s1 has no link at port x"),
            ("s1/1-s-2/9", "no link joins these ports"),
            ("", "unknown switch \"\""),
            ("s1/", "switch s1 has no link at port \"\""),
        ] {
            let error = fabric.element_named(name).unwrap_err().to_string();
            let expected = format!("unknown element {name:?}: {why}; name a switch (s1)");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
