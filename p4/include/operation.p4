// An operation is a step and bucket of a job's epoch. Counts of those that are under way stand in windows of cells,
// one window for each place that loses packets.

// The operation's cell in the window of `index`. Buckets of one step stand next to each other, and those of the
// next step that start before it ends.
bit<32> cell_of(in bit<16> index, in bit<32> step, in bit<16> bucket) {
    return ((bit<32>)index << WINDOW_BITS) + (bit<32>)(step[3:0] ^ bucket[3:0]);
}

// Whether an operation takes the cell of another: of another membership (job and epoch) always, else of one before
// it. What comes late of an older operation is not counted any more; one older than a window of steps is not late,
// its job has begun anew.
bool takes_over(in bit<32> membership, in bit<48> operation, in bit<32> held_membership, in bit<48> held) {
    bit<48> behind = held - operation;
    return membership != held_membership || behind >= 48w1 << (16 + WINDOW_BITS);
}

// Packets that carry a slot's values: only these can be late, and be cut.
bool is_data(in bit<4> kind) {
    return kind == KIND_SCATTER || kind == KIND_GATHER || kind == KIND_REPAIR;
}

// Packets whose step and bucket name an operation that is under way.
bool is_of_operation(in bit<4> kind) {
    return is_data(kind) || kind == KIND_FEEDBACK;
}
