// Ultima's data plane for v1model: BMv2's simple_switch and the embedded switch.
//
// Only this file and the parser use standard_metadata. Each control block does one task and knows headers_t and metadata_t.

// From this version on, externs have a type of index.
#define V1MODEL_VERSION 20200408
#include <core.p4>
#include <v1model.p4>

#include "target_v1model.p4"
#include "sizes.p4"
#include "constants.p4"
#include "headers.p4"
#include "parser_v1model.p4"
#include "deparser.p4"
#include "fragments.p4"
#include "checksum_v1model.p4"
#include "jobs.p4"
#include "admission.p4"
#include "gaps.p4"
#include "upstream_v1model.p4"
#include "reflection.p4"
#include "replication.p4"
#include "routing.p4"
#include "arp.p4"
#include "delivery.p4"
#include "shares.p4"
#include "budget.p4"
#include "queue.p4"
#include "operations_v1model.p4"
#include "trim.p4"
#include "stamps.p4"

parser UltimaParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard) {
    PacketParser() packet_parser;

    state start {
        packet_parser.apply(packet, hdr, meta);
        transition accept;
    }
}

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            IPV4_CHECKSUM_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control UltimaIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Fragments() fragments;
    Jobs() jobs;
    Admission() admission;
    Upstream() upstream;
    Reflection() reflection;
    Replication() replication;
    TimeToLive() time_to_live;
    Routing() routing;
    AddressResolution() arp;

    // By ingress port: bad IPv4 checksum or version, options, fragments that hide an Ultima header, truncated frames.
    counter<bit<9>>(MAX_PORTS, PACKETS_AND_BYTES) malformed;
    // By ingress port: no route, group or neighbor, neither ARP nor IPv4, or time to live exceeded.
    counter<bit<9>>(MAX_PORTS, PACKETS_AND_BYTES) unrouted;
    // By job index: the job's admitted packets among `unrouted`.
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) undeliverable;

    apply {
        meta.ingress_port = standard.ingress_port;
        meta.bad_checksum = standard.checksum_error;

        if (standard.instance_type == INSTANCE_RECIRCULATED) {
            // A copy of a packet that left before: it carries the losses that egress found.
            meta.drop = 1;
            meta.notify = 1;
            meta.notify_step = hdr.ultima.step;
            meta.notify_bucket = hdr.ultima.bucket;
        } else if (hdr.arp.isValid()) {
            arp.apply(hdr, meta);
        } else if (!hdr.ipv4.isValid()) {
            meta.drop = 1;
            meta.unrouted = 1;
        } else {
            if (meta.bad_checksum == 1 || hdr.ipv4.version != 4 || hdr.ipv4.ihl != 5
                    || standard.packet_length < ETHERNET_LENGTH + (bit<32>)hdr.ipv4.total_length) {
                // Options, a truncated frame and some fragments would hide a UDP header from admission.
                meta.malformed = 1;
            } else {
                fragments.apply(hdr, meta);
            }
            if (meta.malformed == 1) {
                meta.drop = 1;
                malformed.count(meta.ingress_port);
            } else if (meta.is_ultima == 1) {
                jobs.apply(hdr, meta);
                admission.apply(hdr, meta);
                // Rejected packets of a known source are not lost either.
                if (meta.source_index != 0) {
                    upstream.apply(hdr, meta);
                }
            }
            // Before the counts by direction: an expired packet goes nowhere.
            time_to_live.apply(hdr, meta);
            if (meta.drop == 0 && meta.is_ultima == 1) {
                if (hdr.ultima.kind == KIND_PROBE) {
                    reflection.apply(hdr, meta);
                } else {
                    replication.apply(hdr, meta);
                }
            }
            if (meta.drop == 0 && meta.replicated == 0 && meta.reflected == 0) {
                routing.apply(hdr, meta);
            }
        }

        if (meta.unrouted == 1) {
            unrouted.count(meta.ingress_port);
            if (meta.is_ultima == 1) {
                undeliverable.count(meta.job_index);
            }
        }
        if (meta.notify == 1) {
            operation_loss_t loss = {
                hdr.ultima.job, hdr.ultima.epoch, meta.notify_step, meta.notify_bucket,
                hdr.ultima.source_rank, meta.notify_port, meta.notify_trimmed, meta.notify_late, meta.notify_upstream };
            digest(1, loss);
            // Egress may have losses of its own to report.
            meta.notify = 0;
        }
        if (meta.drop == 1) {
            mark_to_drop(standard);
        } else if (meta.replicated == 1) {
            standard.mcast_grp = meta.group;
        } else {
            standard.egress_spec = meta.egress_port;
        }
    }
}

control UltimaEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Delivery() delivery;
    Payload() payload;
    Shares() shares;
    Budget() budget;
    Queue() queue;
    ShareCounts() share_counts;
    Operations() operations;
    Trim() trim;
    Stamps() stamps;
    RewrittenWords() words_before;
    RewrittenWords() words_after;

    apply {
        if (standard.instance_type == INSTANCE_EGRESS_CLONE) {
            recirculate_preserving_field_list(LOSS_FIELDS);
        } else {
            meta.egress_port = standard.egress_port;
            meta.rid = standard.egress_rid;
            // Microseconds, used as ticks of 1.024 microseconds.
            meta.residence = (bit<32>)(standard.egress_global_timestamp - standard.ingress_global_timestamp);
            meta.queue_time = standard.deq_timedelta;

            bit<32> before = 0;
            if (meta.is_ultima == 1) {
                words_before.apply(hdr, meta, before);
                delivery.apply(hdr, meta);
            }
            if (meta.drop == 1) {
                mark_to_drop(standard);
            } else {
                if (meta.is_ultima == 1) {
                    payload.apply(hdr, meta);
                    shares.apply(hdr, meta);
                    budget.apply(hdr, meta);
                }
                queue.apply(hdr, meta);
                if (meta.is_ultima == 1) {
                    share_counts.apply(hdr, meta);
                    operations.apply(hdr, meta);
                    stamps.apply(hdr, meta);
                    trim.apply(hdr, meta);
                    if (meta.notify == 1) {
                        clone_preserving_field_list(CloneType.E2E, LOSS_SESSION, LOSS_FIELDS);
                    }
                    if (meta.cause != CAUSE_NONE) {
                        truncate(ETHERNET_LENGTH + (bit<32>)hdr.ipv4.total_length);
                    } else if (hdr.udp.checksum != 0) {
                        bit<32> after;
                        words_after.apply(hdr, meta, after);
                        hdr.udp.checksum = checksum_after(hdr.udp.checksum, before, after);
                    }
                }
            }
        }
    }
}

control ComputeChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), IPV4_CHECKSUM_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control UltimaDeparser(packet_out packet, in headers_t hdr) {
    PacketDeparser() packet_deparser;

    apply {
        packet_deparser.apply(packet, hdr);
    }
}

V1Switch(UltimaParser(), VerifyChecksums(), UltimaIngress(), UltimaEgress(), ComputeChecksums(), UltimaDeparser()) main;
