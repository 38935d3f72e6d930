//! The controller as a server: it brings up the fabric's switches and serves the control API.
//!
//! [`Controller`] holds the state. Requests and tasks are functions and methods in modules above it: `jobs`, `joining`,
//! `membership`, `moves`, `audit`, `check`, `telemetry`, `switch_task`. The `service*` modules translate gRPC messages and contain
//! no logic. No module imports one that imports it.

mod access;
mod audit;
mod burst_drops;
mod call_rates;
mod candidate;
mod changes;
mod check;
mod condition;
mod config;
mod controller;
mod counters;
mod entrance;
mod error;
mod event_log;
mod gate;
mod gnmi;
mod http_server;
mod interfaces;
mod job_conditions;
mod jobs;
mod joining;
mod journal;
mod keeper;
mod leadership_service;
mod listen;
mod lock;
mod losses;
mod membership;
mod message_room;
mod messages;
mod metrics;
mod moves;
mod notify;
mod own_task;
mod plan;
mod port_counters;
mod port_status;
mod proof;
mod registry;
mod report;
mod sample;
mod seats;
mod serve;
mod service;
mod service_fabric;
mod service_plan;
mod service_telemetry;
mod service_watch;
mod session;
mod sessions;
mod start;
mod status;
mod streams;
mod switch;
mod switch_task;
mod tail_drops;
mod telemetry;
mod timers;

pub use call_rates::RateLimit;
pub use condition::ElementState;
pub use config::{AUDIT_EVERY, Config};
pub use controller::{Controller, JobState, JobStatus, SwitchState};
pub use error::{BringUpError, JobRequestError, ServeError};
pub use jobs::JobsRefused;
pub use membership::change::{Evictee, JOIN_WAIT};
pub use moves::Drained;
pub use serve::{CandidateHandle, Handle, serve, serve_on, serve_with_etcd};
pub use service::LONGEST_JOIN_WAIT;
pub use service_telemetry::{WATCH_INTERVAL, WATCH_INTERVALS};
pub use switch::JobCondition;
pub use telemetry::counters;
pub use timers::Timers;
