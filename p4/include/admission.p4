// Admission: an Ultima packet passes only if an entry has its port, job, epoch, rank and address. Unless it goes to the job's group,
// its destination must be a member.
//
// Each Ultima packet counts once here. For each job
//     received = replicated + unicast + reflected + undeliverable
// where `undeliverable` packets have no time to live left, no group, or no route.

control Admission(inout headers_t hdr, inout metadata_t meta) {
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) received;   // admitted, by job index
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) rejected;   // dropped, by job index (0: unknown job)

    action admit() { }

    // For a source whose host is linked to this switch: it answers its PROBEs and counts what it lost.
    action admit_from_host(bit<16> source_index) {
        meta.source_index = source_index;
    }

    action reject() {
        meta.drop = 1;
    }

    table source {
        key = {
            meta.ingress_port: exact @name("ingress_port");
            hdr.ultima.job: exact @name("job");
            hdr.ultima.epoch: exact @name("epoch");
            hdr.ultima.source_rank: exact @name("source_rank");
            hdr.ipv4.src_addr: exact @name("src_addr");
        }
        actions = { admit; admit_from_host; reject; }
        const default_action = reject();
        size = MAX_SOURCES;
    }

    table destination {
        key = {
            hdr.ultima.job: exact @name("job");
            hdr.ipv4.dst_addr: exact @name("dst_addr");
            hdr.udp.dst_port: exact @name("dst_port");
        }
        actions = { admit; reject; }
        const default_action = reject();
        size = MAX_DESTINATIONS;
    }

    bit<16> missing_bytes = 0;
    bit<16> missing_report_bytes = 0;
    bit<16> bytes_before_udp = 0;

    // An action of its own subtracts: Tofino subtracts before it evaluates conditions, and does not compare numbers of 16 bits.
    action measure() {
        missing_bytes = ULTIMA_MIN_UDP_LENGTH |-| hdr.udp.length;
        missing_report_bytes = ULTIMA_MIN_UDP_LENGTH + REPORT_LENGTH |-| hdr.udp.length;
        bytes_before_udp = hdr.ipv4.total_length - hdr.udp.length;
    }

    apply {
        measure();
        // First: `upstream` needs the source index of rejected packets, too.
        if (hdr.ultima.isValid()) {
            source.apply();
        } else {
            reject();
        }
        if (meta.drop == 1) {
            // Rejected above.
        } else if (hdr.ipv4.more_fragments == 1 || missing_bytes != 0 || bytes_before_udp != IPV4_LENGTH) {
            // Too short, longer than the IPv4 packet, or a first fragment.
            reject();
        } else if (hdr.ultima.kind == KIND_PROBE) {
            // A PROBE returns to its source, whatever its destination.
            if (meta.source_index == 0 || !hdr.report.isValid() || missing_report_bytes != 0) {
                reject();
            }
        } else if (hdr.ipv4.dst_addr[31:28] != IPV4_MULTICAST) {
            destination.apply();
        }

        if (meta.drop == 1) {
            CountAtIngress.apply(rejected, meta.job_index);
        } else {
            CountAtIngress.apply(received, meta.job_index);
        }
    }
}
