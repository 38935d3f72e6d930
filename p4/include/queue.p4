// Congestion at an egress port: trims Ultima's data, and marks packets with an ECN-capable transport.
//
// Three independent measures: the packet's queue time, a virtual queue of the job's share, and one of the port.
// A virtual queue is a meter: it fills with the bytes of each packet, drains at the meter's rate, marks over its committed
// burst and trims over its peak burst. A red packet does not fill it, so trimmed packets take no capacity. The port's
// meter runs last, so that a job over its share takes no capacity of the port.

control Queue(inout headers_t hdr, inout metadata_t meta) {
    meter_t(MAX_SHARES, BYTES) share_rate;   // by share
    meter_t(MAX_PORTS, BYTES)  port_rate;    // by egress port

    bit<32> mark_over = 0;
    bit<32> trim_over = 0;
    bit<32> beyond_mark = 0;
    bit<32> beyond_trim = 0;

    // Ticks.
    action limit(bit<32> mark, bit<32> trim) {
        mark_over = mark;
        trim_over = trim;
    }

    action no_limit() {
        mark_over = NO_LIMIT;
        trim_over = NO_LIMIT;
    }

    table queue_time {
        key = { meta.egress_port: exact @name("egress_port"); }
        actions = { limit; no_limit; }
        const default_action = no_limit();
        size = MAX_PORTS;
    }

    action compare() {
        beyond_mark = meta.queue_time |-| mark_over;
        beyond_trim = meta.queue_time |-| trim_over;
    }

    apply {
        queue_time.apply();
        compare();
        if (beyond_mark != 0) {
            meta.marked = 1;
        }
        if (meta.cause == CAUSE_NONE && meta.is_trimmable == 1 && beyond_trim != 0) {
            meta.cause = CAUSE_TRIMMED;
        }

        if (meta.cause == CAUSE_NONE && meta.is_trimmable == 1 && meta.share != 0) {
            ExecuteAtEgress.apply(share_rate, meta.share, meta.share_color);
        }
        if (meta.share_color != METER_GREEN) {
            meta.marked = 1;
        }
        if (meta.share_color == METER_RED) {
            meta.cause = CAUSE_TRIMMED;
        }

        if (meta.cause == CAUSE_NONE) {
            ExecuteAtEgress.apply(port_rate, (bit<16>)meta.egress_port, meta.port_color);
        }
        if (meta.port_color != METER_GREEN) {
            meta.marked = 1;
        }
        if (meta.port_color == METER_RED && meta.is_trimmable == 1) {
            meta.cause = CAUSE_TRIMMED;
        }

        if (meta.marked == 1 && hdr.ipv4.isValid() && hdr.ipv4.tos[1:0] != ECN_NOT_CAPABLE) {
            hdr.ipv4.tos[1:0] = ECN_CONGESTION;
        }
    }
}
