// Every feature of parsers: select with masks, lookahead, advance, verify, header stacks, a header
// union, a variable-length field, and an endless loop. The program puts a report with the parser's
// error in front of the packet.
//
// p4c-bm2-ss --arch v1model --p4runtime-files parsing.p4info.txtpb -o parsing.json parsing.p4

#include <core.p4>
#include <v1model.p4>

error { TooMany }

header report_t {
    bit<8> error_number;
    bit<8> last_label;
    bit<8> labels;
    bit<8> union_member;
}

header base_t {
    bit<8> kind;
    bit<8> number;
}

header label_t {
    bit<7> value;
    bit<1> last;
}

header options_t {
    bit<4> reserved;
    bit<4> length;
    varbit<64> data;
    bit<8> trailer;
}

header short_t {
    bit<8> value;
}

header long_t {
    bit<24> value;
}

header_union either_t {
    short_t short;
    long_t long;
}

struct headers_t {
    report_t report;
    base_t base;
    label_t[3] labels;
    options_t options;
    either_t either;
    short_t behind;
}

struct metadata_t {
    bit<16> ahead;
}

parser Everything(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        transition select(hdr.base.kind, hdr.base.number) {
            (1, _): labels;
            (2, _): options;
            (3, _): limited;
            (4, _): either;
            (5, _): skip;
            (6, _): spin;
            (0x80 &&& 0xf0, 0x02 &&& 0x03): behind;
            (7..9, 0x10): behind;
            default: accept;
        }
    }

    state labels {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.last) {
            0: labels;
            1: accept;
        }
    }

    state options {
        bit<8> ahead = packet.lookahead<bit<8>>();
        packet.extract(hdr.options, ((bit<32>)ahead[3:0]) << 3);
        transition behind;
    }

    state limited {
        verify(hdr.base.number < 10, error.TooMany);
        transition behind;
    }

    state either {
        meta.ahead = packet.lookahead<bit<16>>();
        transition select(meta.ahead[15:12]) {
            0: short;
            default: long;
        }
    }

    state short {
        packet.extract(hdr.either.short);
        transition accept;
    }

    state long {
        packet.extract(hdr.either.long);
        transition accept;
    }

    state skip {
        packet.advance((bit<32>)hdr.base.number);
        transition behind;
    }

    state spin {
        meta.ahead = meta.ahead + 1;
        transition select(meta.ahead) {
            0: accept;
            default: spin;
        }
    }

    state behind {
        packet.extract(hdr.behind);
        transition accept;
    }
}

control Nothing(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Report(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.report.setValid();
        if (standard.parser_error == error.NoError) {
            hdr.report.error_number = 0;
        } else if (standard.parser_error == error.PacketTooShort) {
            hdr.report.error_number = 1;
        } else if (standard.parser_error == error.StackOutOfBounds) {
            hdr.report.error_number = 2;
        } else if (standard.parser_error == error.HeaderTooShort) {
            hdr.report.error_number = 3;
        } else if (standard.parser_error == error.ParserInvalidArgument) {
            hdr.report.error_number = 4;
        } else if (standard.parser_error == error.NoMatch) {
            hdr.report.error_number = 5;
        } else if (standard.parser_error == error.TooMany) {
            hdr.report.error_number = 6;
        } else {
            hdr.report.error_number = 0xff;
        }
        if (hdr.labels[2].isValid()) {
            hdr.report.labels = 3;
        } else if (hdr.labels[1].isValid()) {
            hdr.report.labels = 2;
        } else if (hdr.labels[0].isValid()) {
            hdr.report.labels = 1;
        }
        if (hdr.either.isValid()) {
            hdr.report.union_member = hdr.either.short.isValid() ? 8w1 : 8w2;
        }
        if (hdr.base.kind == 1 && hdr.report.labels != 0) {
            hdr.report.last_label = (bit<8>)hdr.labels[(hdr.report.labels - 1)[1:0]].value;
            if (hdr.base.number == 1) {
                hdr.labels.push_front(1);
                hdr.labels[0].setValid();
                hdr.labels[0].value = 0x55;
            } else if (hdr.base.number == 2) {
                hdr.labels.pop_front(1);
            }
        }
        if (hdr.base.kind == 4 && hdr.base.number == 1) {
            hdr.either.long.setValid();
            hdr.either.long.value = 0xabcdef;
        }
    }
}

control Pass(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(Everything(), Nothing(), Report(), Pass(), Nothing(), Emit()) main;
