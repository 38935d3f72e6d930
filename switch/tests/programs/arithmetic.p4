// Every operation of the language on several widths. A packet has the operands. The switch appends
// the results and returns it.
//
// p4c-bm2-ss --arch v1model --p4runtime-files arithmetic.p4info.txtpb -o arithmetic.json arithmetic.p4

#include <core.p4>
#include <v1model.p4>

header operands_t {
    bit<32> a;
    bit<32> b;
    int<24> s;
    int<24> t;
    bit<128> c;
    bit<128> d;
    bit<200> e;
    bit<200> f;
    bit<8> n;
}

header narrow_t {
    bit<32> sum;
    bit<32> difference;
    bit<32> product;
    bit<32> both;
    bit<32> either;
    bit<32> one;
    bit<32> inverse;
    bit<32> negative;
    bit<32> left;
    bit<32> right;
    bit<32> capped_sum;
    bit<32> capped_difference;
    bit<64> joined;
    bit<12> slice;
    bit<4> nibble;
    bit<32> chosen;
    bit<32> patched;
}

header signed_t {
    int<24> sum;
    int<24> difference;
    int<24> product;
    int<24> negative;
    int<24> left;
    int<24> right;
    int<24> capped_sum;
    int<24> capped_difference;
    int<40> widened;
    int<8> narrowed;
    bit<24> bits;
}

header wide_t {
    bit<128> sum;
    bit<128> difference;
    bit<128> product;
    bit<128> left;
    bit<128> right;
    bit<128> capped_sum;
    bit<200> sum200;
    bit<200> difference200;
    bit<200> product200;
    bit<200> left200;
    bit<200> right200;
    bit<200> inverse200;
    bit<48> slice200;
}

header comparisons_t {
    bit<1> less;
    bit<1> less_or_equal;
    bit<1> equal;
    bit<1> signed_less;
    bit<1> wide_less;
    bit<1> wide_equal;
    bit<1> wider_less;
    bit<1> logic;
}

struct headers_t {
    operands_t operands;
    narrow_t narrow;
    signed_t signed;
    wide_t wide;
    comparisons_t comparisons;
}

struct metadata_t { }

parser Operands(packet_in packet, out headers_t hdr, inout metadata_t meta,
                inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.operands);
        transition accept;
    }
}

control Nothing(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Compute(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action narrow() {
        bit<32> a = hdr.operands.a;
        bit<32> b = hdr.operands.b;
        bit<8> n = hdr.operands.n;
        hdr.narrow.setValid();
        hdr.narrow.sum = a + b;
        hdr.narrow.difference = a - b;
        hdr.narrow.product = a * b;
        hdr.narrow.both = a & b;
        hdr.narrow.either = a | b;
        hdr.narrow.one = a ^ b;
        hdr.narrow.inverse = ~a;
        hdr.narrow.negative = -a;
        hdr.narrow.left = a << n;
        hdr.narrow.right = a >> n;
        hdr.narrow.capped_sum = a |+| b;
        hdr.narrow.capped_difference = a |-| b;
        hdr.narrow.joined = a ++ b;
        hdr.narrow.slice = a[23:12];
        hdr.narrow.nibble = b[3:0];
        hdr.narrow.chosen = a < b ? a : b;
        hdr.narrow.patched = a;
        hdr.narrow.patched[15:8] = b[7:0];
    }

    action signed() {
        int<24> s = hdr.operands.s;
        int<24> t = hdr.operands.t;
        hdr.signed.setValid();
        hdr.signed.sum = s + t;
        hdr.signed.difference = s - t;
        hdr.signed.product = s * t;
        hdr.signed.negative = -s;
        hdr.signed.left = s << hdr.operands.n;
        hdr.signed.right = s >> hdr.operands.n;
        hdr.signed.capped_sum = s |+| t;
        hdr.signed.capped_difference = s |-| t;
        hdr.signed.widened = (int<40>)s;
        hdr.signed.narrowed = (int<8>)s;
        hdr.signed.bits = (bit<24>)s;
    }

    action wide() {
        bit<128> c = hdr.operands.c;
        bit<128> d = hdr.operands.d;
        bit<200> e = hdr.operands.e;
        bit<200> f = hdr.operands.f;
        hdr.wide.setValid();
        hdr.wide.sum = c + d;
        hdr.wide.difference = c - d;
        hdr.wide.product = c * d;
        hdr.wide.left = c << hdr.operands.n;
        hdr.wide.right = c >> hdr.operands.n;
        hdr.wide.capped_sum = c |+| d;
        hdr.wide.sum200 = e + f;
        hdr.wide.difference200 = e - f;
        hdr.wide.product200 = e * f;
        hdr.wide.left200 = e << hdr.operands.n;
        hdr.wide.right200 = e >> hdr.operands.n;
        hdr.wide.inverse200 = ~e;
        hdr.wide.slice200 = e[150:103];
    }

    action compare() {
        hdr.comparisons.setValid();
        hdr.comparisons.less = (bit<1>)(hdr.operands.a < hdr.operands.b);
        hdr.comparisons.less_or_equal = (bit<1>)(hdr.operands.a <= hdr.operands.b);
        hdr.comparisons.equal = (bit<1>)(hdr.operands.a == hdr.operands.b);
        hdr.comparisons.signed_less = (bit<1>)(hdr.operands.s < hdr.operands.t);
        hdr.comparisons.wide_less = (bit<1>)(hdr.operands.c < hdr.operands.d);
        hdr.comparisons.wide_equal = (bit<1>)(hdr.operands.c == hdr.operands.d);
        hdr.comparisons.wider_less = (bit<1>)(hdr.operands.e < hdr.operands.f);
        hdr.comparisons.logic =
            (bit<1>)((hdr.operands.a > hdr.operands.b && hdr.operands.n != 0) || !hdr.operands.isValid());
    }

    apply {
        standard.egress_spec = standard.ingress_port;
        if (hdr.operands.isValid()) {
            narrow();
            signed();
            wide();
            compare();
        } else {
            mark_to_drop(standard);
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

V1Switch(Operands(), Nothing(), Compute(), Pass(), Nothing(), Emit()) main;
