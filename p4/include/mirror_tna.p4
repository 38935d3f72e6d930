// The mirror sessions of trimmed packets: Tofino truncates only mirrored copies. Each port that trims has two sessions, which lead
// out of the same port: one keeps the header, the other also digest and tag. Both also keep the loss_h in front of the frame.

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

// Decides whether an operation's losses have just reached the job's threshold. The mirrored copy of a lost packet, which has
// no payload, carries the counts: in the first pass no stage is left to compare them, and the copy can be mirrored again.
control LossAlarm(in loss_h losses, inout metadata_t meta) {
    bit<32> lost = 0;
    bit<32> left = 0;

    action add() {
        lost = losses.trimmed + losses.late;
    }

    action compare() {
        left = losses.threshold - lost;
    }

    apply {
        add();
        compare();
        // Losses grow by one, so they reach a threshold once. A threshold of 0 means no digest.
        if (losses.threshold != 0 && left == 0) {
            meta.notify = 1;
        }
    }
}
