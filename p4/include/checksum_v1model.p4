// Incremental update of an Internet checksum (RFC 1624, equation 3: HC' = ~(~HC + ~m + m')).
// What a switch did not change stays covered, so corruption on the way is still caught at the end.

// What a 16-bit word that is taken away adds to the ones' complement sum, and one that is put in. Sums of a few words
// fit 32 bits unfolded.
bit<32> taken(in bit<16> was) {
    return (bit<32>)(~was);
}

bit<32> put(in bit<16> now) {
    return (bit<32>)now;
}

bit<32> replaced(in bit<16> was, in bit<16> now) {
    return taken(was) + put(now);
}

bit<32> replaced_addr(in bit<32> was, in bit<32> now) {
    return replaced(was[31:16], now[31:16]) + replaced(was[15:0], now[15:0]);
}

// The checksum after words were replaced whose `replaced` add up to `change`. Carries wrap around
// twice: the first fold of a sum of fewer than 2^16 words can carry once more.
bit<16> checksum_after(in bit<16> checksum, in bit<32> change) {
    bit<32> sum = (bit<32>)(~checksum) + change;
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return ~(bit<16>)sum;
}
