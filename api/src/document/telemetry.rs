//! Telemetry of a job: packets lost, by place and cause.

use crate::v1 as api;
use serde_json::{Value, json};

/// The telemetry of `job` as a document.
pub fn telemetry(job: &str, telemetry: &api::GetTelemetryResponse) -> Value {
    let count = |count: &Option<api::Count>| {
        let count = count.unwrap_or_default();
        json!({ "packets": count.packets, "bytes": count.bytes })
    };
    let switches = telemetry.switches.iter().filter_map(|switch| {
        let counters = switch.counters.as_ref()?;
        if !counters.problem.is_empty() {
            return Some(json!({ "switch": counters.switch, "problem": counters.problem }));
        }
        let ports = switch.ports.iter().map(|port| {
            json!({
                "port": port.port,
                "port_name": port.port_name,
                "peer": port.peer,
                "sent": count(&port.sent),
                "late": count(&port.late),
                "trimmed": count(&port.trimmed),
                "trimmed_sealed": count(&port.cut_sealed),
            })
        });
        let sources = switch.sources.iter().map(|source| {
            json!({
                "rank": source.rank,
                "lost": source.lost,
                "overtaken": source.overtaken,
                "renumbered": source.renumbered,
                "duplicated": source.duplicated,
            })
        });
        Some(json!({
            "switch": counters.switch,
            "problem": null,
            "received": count(&counters.received),
            "rejected": count(&counters.rejected),
            "replicated": count(&counters.replicated),
            "unicast": count(&counters.unicast),
            "reflected": count(&counters.reflected),
            "undeliverable": count(&counters.undeliverable),
            "delivered": count(&counters.delivered),
            "own_copy": count(&counters.own_copy),
            "unknown_rank": count(&counters.unknown_rank),
            "late": count(&counters.late),
            "trimmed": count(&counters.trimmed),
            "trimmed_sealed": count(&counters.cut_sealed),
            "tail_dropped": switch.tail_dropped,
            "ports": ports.collect::<Vec<_>>(),
            "sources": sources.collect::<Vec<_>>(),
            "digest_lists_dropped": switch.digest_lists_dropped,
        }))
    });
    let losses = telemetry.losses.iter().map(|loss| {
        json!({
            "reported_at_ms": loss.reported_at_ms,
            "switch": loss.switch,
            "port": loss.port,
            "port_name": loss.port_name,
            "epoch": loss.epoch,
            "step": loss.step,
            "bucket": loss.bucket,
            "source": loss.source,
            "trimmed": loss.trimmed,
            "late": loss.late,
            "upstream_lost": loss.upstream_lost,
        })
    });
    json!({
        "job": job,
        "switches": switches.collect::<Vec<_>>(),
        "losses": losses.collect::<Vec<_>>(),
        "losses_discarded": telemetry.losses_forgotten,
    })
}
