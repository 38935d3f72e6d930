// What an egress port can carry: beyond it Ultima's data is trimmed, and all that understands it is marked.
//
// Three measures, each by itself: how long the packet was queued; a virtual queue of the job's share; one of the port.
// A virtual queue is a meter: it fills with the bytes of each packet, drains at the meter's rate, marks over its committed
// burst and trims over its peak burst. A red packet does not fill it, so what is cut takes nothing from the rest; the
// port's is asked last, so that a job over its share takes nothing from the port.

control Queue(inout headers_t hdr, inout metadata_t meta) {
    METER(MAX_SHARES) share_rate;   // by share
    METER(MAX_PORTS)  port_rate;    // by egress port

    bit<32> mark_over = NO_LIMIT;
    bit<32> trim_over = NO_LIMIT;

    // Ticks.
    action limit(bit<32> mark, bit<32> trim) {
        mark_over = mark;
        trim_over = trim;
    }

    table queue_time {
        key = { meta.egress_port: exact @name("egress_port"); }
        actions = { limit; NoAction; }
        const default_action = NoAction();
        size = MAX_PORTS;
    }

    apply {
        queue_time.apply();
        bit<32> beyond_mark = meta.queue_time |-| mark_over;
        bit<32> beyond_trim = meta.queue_time |-| trim_over;
        if (beyond_mark != 0) {
            meta.marked = 1;
        }
        if (meta.cause == CAUSE_NONE && meta.can_be_cut == 1 && beyond_trim != 0) {
            meta.cause = CAUSE_TRIMMED;
        }

        METER_COLOR color = METER_GREEN;
        if (meta.cause == CAUSE_NONE && meta.can_be_cut == 1 && meta.share != 0) {
            METER_EXECUTE(share_rate, meta.share, color);
            if (color != METER_GREEN) {
                meta.marked = 1;
            }
            if (color == METER_RED) {
                meta.cause = CAUSE_TRIMMED;
            }
        }
        if (meta.cause == CAUSE_NONE) {
            METER_EXECUTE(port_rate, meta.egress_port, color);
            if (color != METER_GREEN) {
                meta.marked = 1;
            }
            if (color == METER_RED && meta.can_be_cut == 1) {
                meta.cause = CAUSE_TRIMMED;
            }
        }

        if (meta.marked == 1 && hdr.ipv4.isValid() && hdr.ipv4.tos[1:0] != ECN_NOT_CAPABLE) {
            IPV4_CHANGED(replaced((bit<16>)hdr.ipv4.tos, (bit<16>)(hdr.ipv4.tos[7:2] ++ ECN_CONGESTION)));
            hdr.ipv4.tos[1:0] = ECN_CONGESTION;
        }
    }
}
