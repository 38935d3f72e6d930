// Where a packet that is cut goes on: Tofino cuts only what it mirrors. Each port that may cut has two sessions, which lead out of
// it again: one keeps a header, the other one a header with digest and tag, both with what is in front of it in the chip (loss_h).

control Mirrors(inout headers_t hdr, inout metadata_t meta) {
    // By port, and by whether the header is sealed with digest and tag.
    action set_session(MirrorId_t session) {
        meta.session = session;
    }

    table session {
        key = {
            meta.egress_port: exact @name("egress_port");
            hdr.ultima.auth: exact @name("sealed");
        }
        actions = { set_session; NoAction; }
        const default_action = NoAction();
        size = MAX_PORTS * 2;
    }

    apply {
        session.apply();
    }
}

// Whether an operation's losses have just met the job's threshold. Looked at when the packet whose loss it was passes
// without its payload: there is time for it there, and it has nothing else to be mirrored for.
control Telling(in loss_h cut, inout metadata_t meta) {
    bit<32> lost = 0;
    bit<32> left = 0;

    action add() {
        lost = cut.trimmed + cut.late;
    }

    action compare() {
        left = cut.threshold - lost;
    }

    apply {
        add();
        compare();
        // Losses grow by one: a threshold is met once. One of 0 is met never.
        if (cut.threshold != 0 && left == 0) {
            meta.tell = 1;
        }
    }
}
