// Which job a packet belongs to: where its counts stand and which group its multicast goes to.

control Jobs(inout headers_t hdr, inout metadata_t meta) {
    action set_job(bit<16> index, bit<16> group) {
        meta.job_index = index;
        meta.group = group;
    }

    action unknown_job() {
        meta.job_index = 0;
        meta.group = NO_GROUP;
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
