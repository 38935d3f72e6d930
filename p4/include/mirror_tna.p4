// Where a packet that is cut goes on: Tofino cuts only what it mirrors. Each port that may cut has two sessions, which
// lead back out of it and keep as many bytes as a header has, and a header with digest and tag.

control Mirrors(inout headers_t hdr, inout metadata_t meta) {
    // A port without sessions cuts nothing: what is late, or too much, goes on whole and is only marked.
    action set_sessions(MirrorId_t plain, MirrorId_t sealed) {
        meta.session = plain;
        meta.sealed_session = sealed;
    }

    action no_session() {
        meta.can_be_cut = 0;
    }

    table session {
        key = { meta.egress_port: exact @name("egress_port"); }
        actions = { set_sessions; no_session; }
        const default_action = no_session();
        size = MAX_PORTS;
    }

    apply {
        session.apply();
        if (hdr.ultima.auth == 1) {
            meta.session = meta.sealed_session;
        }
    }
}

// Whether an operation's losses have just met the job's threshold. Looked at when the packet whose loss it was passes
// without its payload: there is time for it there, and it has nothing else to be mirrored for.
control Telling(in loss_h cut, inout metadata_t meta) {
    apply {
        bit<32> left = cut.threshold - cut.trimmed;
        left = left - cut.late;
        // Losses grow by one: a threshold is met once. One of 0 is met never.
        if (cut.threshold != 0 && left == 0) {
            meta.tell = 1;
        }
    }
}
