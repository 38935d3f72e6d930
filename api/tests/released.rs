//! The control API stays compatible with the last release: names, numbers, types and labels of fields, values of enums,
//! and calls. Additions are free.
//!
//! `proto/released.txt` has the API of the last release, one line each. `ULTIMA_RENEW=1 cargo test -p ultima-api --test
//! released` writes it, as a step of a release or with a deliberate break.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, ServiceDescriptorProto,
};
use ultima_api::v1::FILE_DESCRIPTOR_SET;

/// The lines of all messages, enums and services in the files.
fn lines(files: &[FileDescriptorProto]) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in files {
        let package = file.package();
        for message in &file.message_type {
            add_message(package, message, &mut lines);
        }
        for of in &file.enum_type {
            add_enum(package, of, &mut lines);
        }
        for service in &file.service {
            add_service(package, service, &mut lines);
        }
    }
    lines
}

fn add_message(scope: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{scope}.{}", message.name());
    for field in &message.field {
        let oneof = field
            .oneof_index
            .filter(|_| !field.proto3_optional())
            .and_then(|at| message.oneof_decl.get(usize::try_from(at).ok()?));
        let oneof = oneof.map_or(String::new(), |it| format!(" in oneof {}", it.name()));
        let (number, kind) = (field.number(), kind(field));
        lines.insert(format!("{name}.{} = {number} {kind}{oneof}", field.name()));
    }
    for nested in &message.nested_type {
        add_message(&name, nested, lines);
    }
    for nested in &message.enum_type {
        add_enum(&name, nested, lines);
    }
}

fn kind(field: &FieldDescriptorProto) -> String {
    let label = match field.label() {
        Label::Repeated => "repeated ",
        Label::Required => "required ",
        Label::Optional if field.proto3_optional() => "optional ",
        Label::Optional => "",
    };
    match field.r#type() {
        Type::Message | Type::Enum => format!("{label}{}", field.type_name()),
        scalar => format!("{label}{}", scalar.as_str_name()),
    }
}

fn add_enum(scope: &str, of: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &of.value {
        let (name, number) = (value.name(), value.number());
        lines.insert(format!("{scope}.{}.{name} = {number}", of.name()));
    }
}

fn add_service(scope: &str, service: &ServiceDescriptorProto, lines: &mut BTreeSet<String>) {
    let stream = |is_stream: bool| if is_stream { "stream " } else { "" };
    for method in &service.method {
        lines.insert(format!(
            "{scope}.{}.{} ({}{}) returns ({}{})",
            service.name(),
            method.name(),
            stream(method.client_streaming()),
            method.input_type(),
            stream(method.server_streaming()),
            method.output_type(),
        ));
    }
}

/// The released lines that `now` lacks.
fn broken<'a>(released: &'a str, now: &BTreeSet<String>) -> Vec<&'a str> {
    let lines = released.lines();
    lines.filter(|line| !now.contains(*line)).collect()
}

#[test]
fn the_last_release_is_part_of_this_one() {
    let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("a descriptor set");
    let now = lines(&files.file);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/released.txt");
    if env::var_os("ULTIMA_RENEW").is_some() {
        let text: String = now.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&path, text).expect("written");
    }
    let released = fs::read_to_string(&path).expect("proto/released.txt");
    assert!(released.lines().count() > 100, "the list is whole");
    let broken = broken(&released, &now);
    assert!(
        broken.is_empty(),
        "clients of the last release need these; keep them, and give changed fields new names and numbers:\n{}",
        broken.join("\n")
    );
}

#[test]
fn changes_of_number_type_label_and_name_are_found_and_additions_are_not() {
    let compile = |fields: &str| {
        let text = format!("syntax = \"proto3\"; package p; message M {{ {fields} }}");
        let file = protox_parse::parse("m.proto", &text).expect("proto");
        lines(&[file])
    };
    let released: String = compile("string a = 1; repeated uint32 b = 2;")
        .iter()
        .map(|line| format!("{line}\n"))
        .collect();
    let count = |fields: &str| broken(&released, &compile(fields)).len();
    assert_eq!(count("repeated uint32 b = 2; string a = 1; bool c = 3;"), 0);
    for changed in [
        "string a = 3; repeated uint32 b = 2;",
        "bytes a = 1; repeated uint32 b = 2;",
        "optional string a = 1; repeated uint32 b = 2;",
        "string a = 1; uint32 b = 2;",
        "string a = 1; repeated uint32 d = 2;",
        "oneof o { string a = 1; } repeated uint32 b = 2;",
        "string a = 1;",
    ] {
        assert_eq!(count(changed), 1, "{changed}");
    }
}
