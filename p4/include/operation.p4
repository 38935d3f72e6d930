// An operation is a step and bucket of a job's epoch. Counts of those that are under way stand in windows of cells,
// one window for each place that loses packets.

// Packets that carry a slot's values: only these can be late, and be cut.
bool is_data(in bit<4> kind) {
    return kind == KIND_SCATTER || kind == KIND_GATHER || kind == KIND_REPAIR;
}

// Packets whose step and bucket name an operation that is under way.
bool is_of_operation(in bit<4> kind) {
    return is_data(kind) || kind == KIND_FEEDBACK;
}
