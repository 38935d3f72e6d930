//! Compares `proto/` with the descriptors in the Python package `p4runtime`, which its maintainers
//! generate from the specification's files: every message, field, oneof, enum, value, service and
//! method, in both directions. Comments and options for other languages are ignored.
//!
//! `ULTIMA_PYTHON` names the interpreter (`python3` if unset). If the interpreter or the package is
//! missing, the test is skipped, unless `ULTIMA_REQUIRE_PYTHON=1`.

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, OneofDescriptorProto,
};
use std::collections::BTreeSet;
use std::process::Command;

use ultima_testing::skipped;

/// Status of `descriptors.py` for a package that is not installed.
const NOT_INSTALLED: i32 = 3;

#[test]
fn protos_equal_those_of_the_python_package() {
    let Some(theirs) = python_descriptors() else {
        return;
    };
    let ours = FileDescriptorSet::decode(ultima_p4runtime::FILE_DESCRIPTOR_SET).unwrap();
    // The compiler includes Google's files (Any, descriptors).
    let ours = ours
        .file
        .into_iter()
        // The package does not have Stratum's files.
        .filter(|file| {
            file.package() != "google.protobuf" && !file.package().starts_with("stratum")
        });

    let ours: BTreeSet<String> = ours.flat_map(|file| facts(&file)).collect();
    let theirs: BTreeSet<String> = theirs.iter().flat_map(facts).collect();
    assert!(
        theirs.len() > 500,
        "the package has only {} facts",
        theirs.len()
    );

    let missing: Vec<_> = theirs.difference(&ours).collect();
    let extra: Vec<_> = ours.difference(&theirs).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "in the Python package only: {missing:#?}\nin proto/ only: {extra:#?}"
    );
}

#[test]
fn every_kind_of_difference_is_detected() {
    let file = FileDescriptorSet::decode(ultima_p4runtime::FILE_DESCRIPTOR_SET)
        .unwrap()
        .file
        .into_iter()
        .find(|file| file.name() == "p4/v1/p4runtime.proto")
        .unwrap();
    let original: BTreeSet<_> = facts(&file).into_iter().collect();
    let changes: [fn(&mut FileDescriptorProto); 9] = [
        |file| file.message_type[0].field[0].number = Some(99),
        |file| file.message_type[0].field[0].name = Some("other".into()),
        |file| file.message_type[0].field[0].r#type = Some(Type::Uint32.into()),
        |file| file.message_type[0].field[0].label = Some(Label::Repeated.into()),
        |file| file.message_type[0].field[0].oneof_index = Some(0),
        |file| file.message_type[0].enum_type[0].value[1].number = Some(77),
        |file| file.service[0].method[1].server_streaming = Some(false),
        |file| drop(file.message_type.pop()),
        |file| drop(file.enum_type.pop()),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut changed = file.clone();
        changed.message_type[0]
            .oneof_decl
            .push(OneofDescriptorProto::default());
        change(&mut changed);
        let changed: BTreeSet<_> = facts(&changed).into_iter().collect();
        assert_ne!(changed, original, "change {number}");
    }
}

/// The package's descriptors. If Python or the package is missing, reports a skipped test and returns `None`.
fn python_descriptors() -> Option<Vec<FileDescriptorProto>> {
    let python = std::env::var("ULTIMA_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/descriptors.py");
    let missing = match Command::new(&python).arg(script).output() {
        Err(error) => format!("cannot run {python}: {error}"),
        Ok(output) => match output.status.code() {
            Some(0) => {
                let lines = String::from_utf8(output.stdout).unwrap();
                return Some(lines.lines().map(decode_line).collect());
            }
            Some(NOT_INSTALLED) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            _ => panic!(
                "{python} {script}: {}",
                String::from_utf8_lossy(&output.stderr)
            ),
        },
    };
    let required = std::env::var("ULTIMA_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
    assert!(
        !required,
        "{missing}, and ULTIMA_REQUIRE_PYTHON=1 requires it"
    );
    skipped(&format!(
        "{missing}; pip install p4runtime, or set ULTIMA_PYTHON"
    ));
    None
}

fn decode_line(line: &str) -> FileDescriptorProto {
    let bytes: Vec<u8> = line
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    FileDescriptorProto::decode(&bytes[..]).unwrap()
}

/// One line for each fact on which both ends of a connection must agree.
fn facts(file: &FileDescriptorProto) -> Vec<String> {
    let mut facts = vec![format!("file {} package {}", file.name(), file.package())];
    facts.push(format!("file {} syntax {}", file.name(), file.syntax()));
    for message in &file.message_type {
        message_facts(file.package(), message, &mut facts);
    }
    for declared in &file.enum_type {
        enum_facts(file.package(), declared, &mut facts);
    }
    for service in &file.service {
        for method in &service.method {
            facts.push(format!(
                "rpc {}.{}/{} ({}{}) returns ({}{})",
                file.package(),
                service.name(),
                method.name(),
                if method.client_streaming() {
                    "stream "
                } else {
                    ""
                },
                method.input_type(),
                if method.server_streaming() {
                    "stream "
                } else {
                    ""
                },
                method.output_type(),
            ));
        }
    }
    facts
}

fn message_facts(scope: &str, message: &DescriptorProto, facts: &mut Vec<String>) {
    let name = format!("{scope}.{}", message.name());
    let is_map_entry = message
        .options
        .as_ref()
        .is_some_and(|options| options.map_entry());
    facts.push(format!(
        "message {name}{}",
        if is_map_entry { " (map entry)" } else { "" }
    ));
    for field in &message.field {
        facts.push(field_fact(&name, field, message));
    }
    for range in &message.reserved_range {
        facts.push(format!(
            "reserved {name} {}..{}",
            range.start(),
            range.end()
        ));
    }
    for reserved in &message.reserved_name {
        facts.push(format!("reserved {name} {reserved}"));
    }
    for declared in &message.enum_type {
        enum_facts(&name, declared, facts);
    }
    for nested in &message.nested_type {
        message_facts(&name, nested, facts);
    }
}

fn field_fact(
    message_name: &str,
    field: &FieldDescriptorProto,
    message: &DescriptorProto,
) -> String {
    let oneof = field
        .oneof_index
        .map(|index| message.oneof_decl[index as usize].name());
    let deprecated = field
        .options
        .as_ref()
        .is_some_and(|options| options.deprecated());
    format!(
        "field {message_name}.{} = {} {:?} {:?} {} oneof {oneof:?} optional {} deprecated {deprecated}",
        field.name(),
        field.number(),
        field.label(),
        field.r#type(),
        field.type_name(),
        field.proto3_optional(),
    )
}

fn enum_facts(scope: &str, declared: &EnumDescriptorProto, facts: &mut Vec<String>) {
    facts.push(format!("enum {scope}.{}", declared.name()));
    for value in &declared.value {
        facts.push(format!(
            "value {scope}.{}.{} = {}",
            declared.name(),
            value.name(),
            value.number()
        ));
    }
}
