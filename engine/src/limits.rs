//! Limits for programs, packets, and the state that the control plane writes.

/// Limits for a program and its packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Entries of one table, or members of one value set, that a program may declare.
    pub table_entries: usize,
    /// Cells of all counter, meter and register arrays together. A register cell counts once per 64 bits, as does a meter
    /// cell's state.
    pub array_cells: usize,
    /// Parser states that one packet may visit.
    pub parser_states: u32,
    /// Jumps that one packet may take in the actions of one pass.
    pub action_jumps: u32,
    /// Times that one packet may be resubmitted, recirculated or cloned from egress. A clone continues its packet's count.
    pub passes: u32,
    /// Copies, resubmits and recirculations of one received packet and its descendants.
    pub descendants: u32,
    /// Multicast groups.
    pub groups: usize,
    /// Clone sessions.
    pub sessions: usize,
    /// Classes of service of clone sessions, 1 to 8.
    pub classes_of_service: u8,
    /// Replicas of one group or session.
    pub replicas: usize,
    /// Groups of one action profile, including one-shot sets.
    pub profile_groups: usize,
    /// Sum of member weights in all groups of one action profile.
    pub profile_weight: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            table_entries: 1 << 20,
            array_cells: 1 << 22,
            parser_states: 256,
            action_jumps: 1 << 16,
            passes: 16,
            descendants: 1 << 12,
            groups: 1 << 12,
            sessions: 1 << 10,
            classes_of_service: 8,
            replicas: 1 << 10,
            profile_groups: 1 << 16,
            profile_weight: 1 << 20,
        }
    }
}
