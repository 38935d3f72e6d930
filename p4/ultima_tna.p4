// Ultima's data plane for Tofino (TNA) 1 and 2.
//
// This file knows the chip's intrinsic metadata. The control blocks that it calls, one for each task, know only headers_t and
// metadata_t; Mirrors and LossAlarm exist on this target only.

#include <core.p4>
#include "target_tna.p4"
#include "sizes.p4"
#include "constants.p4"
#include "headers.p4"
#include "parser_tna.p4"
#include "deparser.p4"
#include "fragments.p4"
#include "jobs.p4"
#include "admission.p4"
#include "gaps.p4"
#include "upstream_tna.p4"
#include "reflection.p4"
#include "replication.p4"
#include "routing.p4"
#include "arp.p4"
#include "delivery.p4"
#include "shares.p4"
#include "budget.p4"
#include "mirror_tna.p4"
#include "queue.p4"
#include "operations_tna.p4"
#include "trim.p4"
#include "stamps.p4"

// The headers in front of a frame inside the chip, and the frame.
struct frame_t {
    bridge_h  bridge;
    loss_h    trimmed_losses;    // in front of a trimmed packet, on its way out
    loss_h    reported_losses;   // in front of a packet that reports a loss, on its way to ingress
    headers_t headers;
}

// Metadata that is never written is 0, as on v1model.
@pa_auto_init_metadata
// A register's output needs one container, also if few of its bits are read.
@pa_container_size("ingress", "meta.source.gap_bucket", 32)
@pa_container_size("ingress", "meta.source.gap_step", 32)
parser UltimaIngressParser(packet_in packet, out frame_t frame, out metadata_t meta,
                           out ingress_intrinsic_metadata_t intrinsic) {
    PacketParser() packet_parser;

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        meta.ingress_port = intrinsic.ingress_port;
        transition select(intrinsic.ingress_port[6:0]) {
            RECIRCULATION_PORT: loss;
            default: headers;
        }
    }

    state loss {
        packet.extract(frame.reported_losses);
        transition headers;
    }

    state headers {
        packet_parser.apply(packet, frame.headers, meta);
        transition accept;
    }
}

control UltimaIngress(inout frame_t frame, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
                      in ingress_intrinsic_metadata_from_parser_t parsed,
                      inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
                      inout ingress_intrinsic_metadata_for_tm_t to_tm) {
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
    counter_t(MAX_PORTS, PACKETS_AND_BYTES) malformed;
    // By ingress port: no route, group or neighbor, neither ARP nor IPv4, or time to live exceeded.
    counter_t(MAX_PORTS, PACKETS_AND_BYTES) unrouted;
    // By job index: the job's admitted packets among `unrouted`.
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) undeliverable;

    // A copy of a packet that left before: it carries the losses that egress found.
    action read_losses() {
        meta.drop = 1;
        meta.notify = 1;
        meta.notify_step = frame.headers.ultima.step;
        meta.notify_bucket = frame.headers.ultima.bucket;
        meta.notify_port = frame.reported_losses.port;
        meta.notify_trimmed = frame.reported_losses.trimmed;
        meta.notify_late = frame.reported_losses.late;
    }

    action drop_unrouted() {
        meta.drop = 1;
        meta.unrouted = 1;
    }

    action bridge_metadata() {
        frame.bridge.setValid();
        frame.bridge.kind = EGRESS_PACKET;
        frame.bridge.replicated = meta.replicated;
        frame.bridge.reflected = meta.reflected;
        frame.bridge.ingress_port = meta.ingress_port;
        frame.bridge.job_index = meta.job_index;
        frame.bridge.loss_threshold = meta.loss_threshold;
        frame.bridge.upstream_lost = meta.upstream_lost;
        frame.bridge.arrived_at = parsed.global_tstamp[31:0];
    }

    apply {
        if (frame.reported_losses.isValid()) {
            read_losses();
        } else if (frame.headers.arp.isValid()) {
            arp.apply(frame.headers, meta);
        } else if (!frame.headers.ipv4.isValid()) {
            drop_unrouted();
        } else {
            // Conditions are short and in sequence: on the chip, a nested block must end before the code after it begins.
            if (meta.bad_checksum == 1 || frame.headers.ipv4.version != 4 || frame.headers.ipv4.ihl != 5
                    || parsed.parser_err != PARSER_ERROR_OK) {
                // Options, a truncated frame and some fragments would hide a UDP header from admission.
                meta.malformed = 1;
            } else {
                fragments.apply(frame.headers, meta);
            }
            if (meta.malformed == 1) {
                meta.drop = 1;
                CountAtIngress.apply(malformed, (bit<16>)meta.ingress_port);
            } else if (meta.is_ultima == 1) {
                jobs.apply(frame.headers, meta);
                admission.apply(frame.headers, meta);
            }
            // Rejected packets of a known source are not lost either.
            upstream.apply(frame.headers, meta);
            // Before the counts by direction: an expired packet goes nowhere.
            time_to_live.apply(frame.headers, meta);
            if (meta.drop == 0 && meta.is_ultima == 1 && frame.headers.ultima.kind == KIND_PROBE) {
                reflection.apply(frame.headers, meta);
            }
            if (meta.drop == 0 && meta.is_ultima == 1 && meta.reflected == 0) {
                replication.apply(frame.headers, meta);
            }
            if (meta.drop == 0 && meta.replicated == 0 && meta.reflected == 0) {
                routing.apply(frame.headers, meta);
            }
        }

        if (meta.unrouted == 1) {
            CountAtIngress.apply(unrouted, (bit<16>)meta.ingress_port);
        }
        if (meta.unrouted == 1 && meta.is_ultima == 1) {
            CountAtIngress.apply(undeliverable, meta.job_index);
        }
        if (meta.notify == 1) {
            to_deparser.digest_type = DIGEST_LOSS;
        }
        if (meta.drop == 1) {
            to_deparser.drop_ctl = 1;
        } else {
            bridge_metadata();
        }
        if (meta.drop == 0 && meta.replicated == 1) {
            to_tm.mcast_grp_a = meta.group;
        } else if (meta.drop == 0) {
            to_tm.ucast_egress_port = meta.egress_port;
        }
    }
}

control UltimaIngressDeparser(packet_out packet, inout frame_t frame, in metadata_t meta,
                              in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
    PacketDeparser() packet_deparser;
    Checksum() ipv4_sum;
    // The name of v1model's digest, which is that of its type.
    @name(".operation_loss_t")
    Digest<operation_loss_t>(DIGEST_LOSS) loss;

    apply {
        frame.headers.ipv4.checksum = ipv4_sum.update(IPV4_CHECKSUM_FIELDS(frame.headers.ipv4));
        if (to_deparser.digest_type == DIGEST_LOSS) {
            loss.pack({ frame.headers.ultima.job, frame.headers.ultima.epoch, meta.notify_step,
                meta.notify_bucket, frame.headers.ultima.source_rank, meta.notify_port, meta.notify_trimmed,
                meta.notify_late, meta.notify_upstream });
        }
        packet.emit(frame.bridge);
        packet_deparser.apply(packet, frame.headers);
    }
}

parser UltimaEgressParser(packet_in packet, out frame_t frame, out metadata_t meta,
                          out egress_intrinsic_metadata_t intrinsic) {
    PacketParser() packet_parser;

    state start {
        packet.extract(intrinsic);
        meta.egress_port = intrinsic.egress_port;
        meta.rid = intrinsic.egress_rid;
        transition select(packet.lookahead<bit<8>>()) {
            EGRESS_PACKET: bridge;
            EGRESS_TRIMMED: trimmed;
            default: loss;
        }
    }

    state bridge {
        packet.extract(frame.bridge);
        meta.replicated = frame.bridge.replicated;
        meta.reflected = frame.bridge.reflected;
        meta.ingress_port = frame.bridge.ingress_port;
        meta.job_index = frame.bridge.job_index;
        meta.loss_threshold = frame.bridge.loss_threshold;
        meta.upstream_lost = frame.bridge.upstream_lost;
        packet_parser.apply(packet, frame.headers, meta);
        transition accept;
    }

    // Only the header in front of a mirrored packet is parsed.
    state trimmed {
        packet.extract(frame.trimmed_losses);
        transition accept;
    }

    state loss {
        packet.extract(frame.reported_losses);
        transition accept;
    }
}

control UltimaEgress(inout frame_t frame, inout metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
                     in egress_intrinsic_metadata_from_parser_t parsed,
                     inout egress_intrinsic_metadata_for_deparser_t to_deparser,
                     inout egress_intrinsic_metadata_for_output_port_t to_port) {
    Delivery() delivery;
    Payload() payload;
    Shares() shares;
    Budget() budget;
    Queue() queue;
    ShareCounts() share_counts;
    Operations() operations;
    Trim() trim;
    Mirrors() mirrors;
    Stamps() stamps;
    LossAlarm() loss_alarm;

    // Nanoseconds, which wrap after 4 s; no queue takes that long.
    action measure() {
        meta.residence = parsed.global_tstamp[31:0] - frame.bridge.arrived_at;
        meta.queue_time = QUEUE_TIME(intrinsic, parsed.global_tstamp[31:0] - frame.bridge.arrived_at);
    }

    action convert_to_ticks() {
        meta.residence = meta.residence >> 10;
        meta.queue_time = meta.queue_time >> 10;
    }

    // The mirrored copy goes on in the packet's place: the chip truncates only copies.
    action mirror_trimmed() {
        meta.mirror_kind = EGRESS_TRIMMED;
        meta.notify_port = (bit<16>)meta.egress_port;
        to_deparser.mirror_type = MIRROR_TRIMMED;
        MIRROR_REWRITTEN(to_deparser);
        to_deparser.drop_ctl = 1;
    }

    action notify_controller() {
        meta.mirror_kind = EGRESS_LOSS;
        meta.session = LOSS_SESSION;
        to_deparser.mirror_type = MIRROR_LOSS;
        MIRROR_REWRITTEN(to_deparser);
    }

    apply {
        if (frame.bridge.isValid()) {
            measure();
            if (meta.is_ultima == 1) {
                delivery.apply(frame.headers, meta);
            }
            if (meta.drop == 1) {
                to_deparser.drop_ctl = 1;
            } else {
                convert_to_ticks();
                // These run for all packets. Blocks that write headers have a condition, because the chip may keep another
                // packet's headers in the same containers.
                mirrors.apply(frame.headers, meta);
                payload.apply(frame.headers, meta);
                if (meta.is_ultima == 1) {
                    shares.apply(frame.headers, meta);
                }
                budget.apply(frame.headers, meta);
                queue.apply(frame.headers, meta);
                operations.apply(frame.headers, meta);
                if (meta.is_ultima == 1) {
                    share_counts.apply(frame.headers, meta);
                }
                stamps.apply(frame.headers, meta);
                // A checksum of 0 means that there is none.
                if (meta.is_ultima == 1 && frame.headers.udp.checksum != 0 && meta.cause == CAUSE_NONE) {
                    meta.has_checksum = 1;
                }
                trim.apply(frame.headers, meta);
                if (meta.cause != CAUSE_NONE) {
                    mirror_trimmed();
                }
            }
        } else if (frame.trimmed_losses.isValid()) {
            loss_alarm.apply(frame.trimmed_losses, meta);
            if (meta.notify == 1) {
                notify_controller();
            }
        }
    }
}

control UltimaEgressDeparser(packet_out packet, inout frame_t frame, in metadata_t meta,
                             in egress_intrinsic_metadata_for_deparser_t to_deparser) {
    PacketDeparser() packet_deparser;
    Checksum() ipv4_sum;
    Checksum() udp_sum;
    Mirror(MIRROR_TRIMMED) trimmed;
    Mirror(MIRROR_LOSS) loss;

    apply {
        frame.headers.ipv4.checksum = ipv4_sum.update(IPV4_CHECKSUM_FIELDS(frame.headers.ipv4));
        if (meta.has_checksum == 1) {
            frame.headers.udp.checksum = udp_sum.update(data = {
                frame.headers.ipv4.dst_addr, frame.headers.udp.dst_port, frame.headers.ultima.version,
                frame.headers.ultima.kind, frame.headers.ultima.trimmed, frame.headers.ultima.late,
                frame.headers.ultima.congestion, frame.headers.ultima.hops, frame.headers.ultima.budget,
                frame.headers.ultima.path_queue, frame.headers.report.port, frame.headers.report.known,
                frame.headers.report.sent, frame.headers.report.trimmed, frame.headers.report.late,
                frame.headers.report.upstream_lost, meta.unchanged_sum }, zeros_as_ones = true);
        }
        if (to_deparser.mirror_type == MIRROR_TRIMMED) {
            trimmed.emit<loss_h>(meta.session, { meta.mirror_kind, meta.notify_port, meta.trimmed_now, meta.late_now,
                meta.notify_threshold });
        }
        if (to_deparser.mirror_type == MIRROR_LOSS) {
            loss.emit<loss_h>(meta.session, { meta.mirror_kind, frame.trimmed_losses.port, frame.trimmed_losses.trimmed,
                frame.trimmed_losses.late, frame.trimmed_losses.threshold });
        }
        packet.emit(frame.reported_losses);
        packet_deparser.apply(packet, frame.headers);
    }
}

Pipeline(UltimaIngressParser(), UltimaIngress(), UltimaIngressDeparser(), UltimaEgressParser(), UltimaEgress(),
    UltimaEgressDeparser()) pipe;
Switch(pipe) main;
