// Stands in for p4/include/replication.p4 in a program that only tests run: it loses GATHER of slot 5.
//
// p4c-bm2-ss --arch v1model -I cli/tests/programs/drop_gather_slot -I p4/include --Werror
//     -o cli/tests/programs/drop_gather_slot.json
//     --p4runtime-files cli/tests/programs/drop_gather_slot.p4info.txtpb p4/ultima_v1model.p4
//
// printed the two files beside this folder; the JSON is kept without `source_info` and white space.

control Replication(inout headers_t hdr, inout metadata_t meta) {
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) replicated;

    action no_group() {
        meta.drop = 1;
        meta.unrouted = 1;
    }

    apply {
        if (hdr.ultima.kind == 2 && hdr.ultima.slot == 5) {
            meta.drop = 1;
        } else if (hdr.ipv4.dst_addr[31:28] == IPV4_MULTICAST) {
            if (meta.group == NO_GROUP) {
                no_group();
            } else {
                meta.replicated = 1;
                CountAtIngress.apply(replicated, meta.job_index);
            }
        }
    }
}
