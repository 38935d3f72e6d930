//! Two jobs on one switch do not get each other's packets.

use std::net::{Ipv4Addr, SocketAddrV4};

use ultima_wire::Kind;

use super::{Scenario, Scene};
use crate::generator::Datagram;

pub(super) fn scenarios(scene: Scene<'_>) -> Vec<Scenario> {
    vec![
        taking_turns(scene),
        any_group_address(scene),
        to_the_other_job(scene),
    ]
}

/// The second host has members of both jobs. Each sends and receives packets of its own job.
fn taking_turns(scene: Scene<'_>) -> Scenario {
    let Scene { left, right, .. } = scene;
    assert_eq!(
        left.host_of(2),
        right.host_of(0),
        "one host is in both jobs"
    );
    Scenario::new("two jobs take turns")
        .multicast(scene, left, 2, &left.gather(2, b"left"))
        .multicast(scene, right, 0, &right.gather(0, b"right"))
        .unicast(scene, left, 2, 0, &left.scatter(2, 0, b"left"))
        .unicast(scene, right, 0, 1, &right.scatter(0, 1, b"right"))
        .multicast(scene, left, 0, &left.gather(0, b"left"))
        .multicast(scene, right, 1, &right.gather(1, b"right"))
}

/// A member's multicast goes to its job's group, independent of the destination address.
fn any_group_address(scene: Scene<'_>) -> Scenario {
    let Scene { left, right, .. } = scene;
    let groups = [
        right.group_address,
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::new(239, 255, 255, 255),
    ];
    groups.into_iter().fold(
        Scenario::new("another group's address"),
        |scenario, group| {
            let dst = SocketAddrV4::new(group, ultima_wire::UDP_PORT);
            scenario.multicast(
                scene,
                left,
                1,
                &Datagram {
                    dst,
                    ..left.gather(1, b"left")
                },
            )
        },
    )
}

/// The switch rejects a member's packets with the number of the other job, or to the other job's members.
fn to_the_other_job(scene: Scene<'_>) -> Scenario {
    let Scene { left, right, .. } = scene;
    let (third, fourth) = (left.host_of(3), right.host_of(1));
    let as_other = left
        .gather(3, b"left")
        .with_header(&right.header(Kind::Gather, 1, 1));
    let as_left = right
        .gather(1, b"right")
        .with_header(&left.header(Kind::Gather, 3, 3));
    let to_other = Datagram {
        dst: right.members[1].address,
        ..left.scatter(3, 2, b"left")
    };
    // The same host, with the port of its rank in the other job.
    let to_neighbour = Datagram {
        dst: right.members[0].address,
        ..left.scatter(3, 2, b"left")
    };
    Scenario::new("from one job to the other")
        .rejected(third, as_other.emit(), right.counter)
        .rejected(fourth, as_left.emit(), left.counter)
        .rejected(third, to_other.emit(), left.counter)
        .rejected(third, to_neighbour.emit(), left.counter)
}
