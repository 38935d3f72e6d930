// The job of a packet: the index of its counters, its multicast group, and the number of lost packets of one operation at which
// the controller gets a digest.

control Jobs(inout headers_t hdr, inout metadata_t meta) {
    action set_job(bit<16> index, bit<16> group, bit<32> loss_threshold) {
        meta.job_index = index;
        meta.group = group;
        meta.loss_threshold = loss_threshold;
    }

    action unknown_job() {
        meta.job_index = 0;
        meta.group = NO_GROUP;
        meta.loss_threshold = 0;
    }

    table job {
        key = { hdr.ultima.job: exact @name("job"); }
        actions = { set_job; unknown_job; }
        const default_action = unknown_job();
        size = MAX_JOBS;
    }

    apply {
        job.apply();
    }
}
