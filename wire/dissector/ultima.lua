-- Wireshark dissector for Ultima, version 1. docs/packet.md is the byte table.
--
-- Use:  wireshark -X lua_script:ultima.lua     or copy it to the personal Lua plugins folder.
-- Packets are recognized by magic and version, whatever their UDP port.

local ultima = Proto("ultima", "Ultima AllReduce")

local HEADER_LENGTH, AUTH_LENGTH = 52, 16
local MAGIC, VERSION = 0x554c, 1

local KINDS = {
    [1] = "SCATTER", [2] = "GATHER", [3] = "FEEDBACK", [4] = "PROBE",
    [5] = "REPORT", [6] = "REPAIR", [7] = "CONTROL",
}
local REPAIR_REQUESTS = { [2] = "aggregates", [3] = "contributions" }
local DTYPES = { [0] = "none", [1] = "f32", [2] = "bf16", [3] = "f16" }

local f = {
    magic = ProtoField.uint16("ultima.magic", "Magic", base.HEX),
    version = ProtoField.uint8("ultima.version", "Version", base.DEC, nil, 0xf0),
    kind = ProtoField.uint8("ultima.kind", "Kind", base.DEC, KINDS, 0x0f),
    trimmed = ProtoField.bool("ultima.trimmed", "Trimmed", 8, nil, 0x80),
    late = ProtoField.bool("ultima.late", "Late", 8, nil, 0x40),
    congestion = ProtoField.bool("ultima.congestion", "Congestion experienced", 8, nil, 0x20),
    hops = ProtoField.uint8("ultima.hops", "Hops", base.DEC, nil, 0x1f),
    budget = ProtoField.uint32("ultima.budget", "Budget (1.024 us)"),
    path_queue = ProtoField.uint32("ultima.path_queue", "Longest queue on the path (1.024 us)"),
    job = ProtoField.uint16("ultima.job", "Job"),
    epoch = ProtoField.uint16("ultima.epoch", "Epoch"),
    source_rank = ProtoField.uint16("ultima.source_rank", "Source rank"),
    owner_rank = ProtoField.uint16("ultima.owner_rank", "Owner rank"),
    packet_number = ProtoField.uint32("ultima.packet_number", "Packet number"),
    step = ProtoField.uint32("ultima.step", "Step"),
    bucket = ProtoField.uint16("ultima.bucket", "Bucket"),
    last = ProtoField.bool("ultima.last", "Last of its phase", 8, nil, 0x80),
    hadamard = ProtoField.bool("ultima.hadamard", "Hadamard-coded", 8, nil, 0x40),
    exact = ProtoField.bool("ultima.exact", "Of an exact operation", 8, nil, 0x10),
    has_auth = ProtoField.bool("ultima.auth", "Authenticated", 8, nil, 0x20),
    length_check = ProtoField.uint8("ultima.length_check", "Length check (entries mod 15, plus 1)", base.DEC, nil, 0x0f),
    dtype = ProtoField.uint8("ultima.dtype", "Element type", base.DEC, DTYPES, 0xf0),
    incast = ProtoField.uint8("ultima.incast", "Incast", base.DEC, nil, 0x0f),
    slot = ProtoField.uint32("ultima.slot", "Slot"),
    slots = ProtoField.uint32("ultima.slots", "Slots in the shard"),
    contributions = ProtoField.uint16("ultima.contributions", "Contributions"),
    shared_tc = ProtoField.uint16("ultima.shared_tc", "Shared t_C (65.536 us)"),
    sent_at = ProtoField.uint32("ultima.sent_at", "Sender's clock (1.024 us)"),
    echoed = ProtoField.uint32("ultima.echoed", "Echoed clock (1.024 us), or sequence number of data"),
    digest = ProtoField.uint64("ultima.auth.digest", "Payload digest", base.HEX),
    tag = ProtoField.uint64("ultima.auth.tag", "Header tag", base.HEX),
    payload = ProtoField.bytes("ultima.payload", "Payload"),
    feedback_wait = ProtoField.uint32("ultima.feedback.wait", "Will still wait (1.024 us)"),
    feedback_queue = ProtoField.uint32("ultima.feedback.queue", "Mean queue (1.024 us), all ones: not known"),
    feedback_marked = ProtoField.uint8("ultima.feedback.marked", "Share marked (255ths)"),
    feedback_trimmed = ProtoField.uint8("ultima.feedback.trimmed", "Share trimmed (255ths)"),
    feedback_notice = ProtoField.uint8("ultima.feedback.notice", "Notice"),
    report_port = ProtoField.uint16("ultima.report.port", "Switch port"),
    report_known = ProtoField.uint16("ultima.report.known", "Operation known"),
    report_sent = ProtoField.uint32("ultima.report.sent", "Data packets sent"),
    report_trimmed = ProtoField.uint32("ultima.report.trimmed", "Trimmed"),
    report_late = ProtoField.uint32("ultima.report.late", "Late"),
    report_upstream_lost = ProtoField.uint32("ultima.report.upstream_lost", "Lost before the switch"),
    repair_of = ProtoField.uint8("ultima.repair.of", "Asks for", base.DEC, REPAIR_REQUESTS),
    repair_first = ProtoField.uint32("ultima.repair.first", "First slot of the bitmap"),
    repair_wanted = ProtoField.bytes("ultima.repair.wanted", "Slots wanted, from the lowest bit of the first byte on"),
    credit_taken = ProtoField.uint32("ultima.credit.taken", "Credit: last sequence number taken"),
    credit_window = ProtoField.uint16("ultima.credit.window", "Credit: packets after it"),
    credit_arrived = ProtoField.uint32("ultima.credit.arrived", "Credit: packets arrived"),
    credit_last = ProtoField.uint32("ultima.credit.last", "Credit requested: last sequence number sent"),
}

for _, field in pairs(f) do
    table.insert(ultima.fields, field)
end

-- Fields in the order of the bytes: offset, length, field.
local LAYOUT = {
    { 0, 2, f.magic }, { 2, 1, f.version }, { 2, 1, f.kind },
    { 3, 1, f.trimmed }, { 3, 1, f.late }, { 3, 1, f.congestion }, { 3, 1, f.hops },
    { 4, 4, f.budget }, { 8, 4, f.path_queue }, { 12, 2, f.job }, { 14, 2, f.epoch },
    { 16, 2, f.source_rank }, { 18, 2, f.owner_rank }, { 20, 4, f.packet_number },
    { 24, 4, f.step }, { 28, 2, f.bucket },
    { 30, 1, f.last }, { 30, 1, f.hadamard }, { 30, 1, f.has_auth }, { 30, 1, f.exact }, { 30, 1, f.length_check },
    { 31, 1, f.dtype }, { 31, 1, f.incast },
    { 32, 4, f.slot }, { 36, 4, f.slots }, { 40, 2, f.contributions }, { 42, 2, f.shared_tc },
    { 44, 4, f.sent_at }, { 48, 4, f.echoed },
}

-- A switch's answer to a PROBE, the first bytes of a REPORT's payload.
local REPORT_LENGTH = 20
local REPORT = {
    { 0, 2, f.report_port }, { 2, 2, f.report_known }, { 4, 4, f.report_sent }, { 8, 4, f.report_trimmed },
    { 12, 4, f.report_late }, { 16, 4, f.report_upstream_lost },
}

-- FEEDBACK's payload: a receiver's report to senders.
local FEEDBACK_LENGTH = 12
local FEEDBACK = {
    { 0, 4, f.feedback_wait }, { 4, 4, f.feedback_queue }, { 8, 1, f.feedback_marked }, { 9, 1, f.feedback_trimmed },
    { 10, 1, f.feedback_notice },
}

-- CONTROL, messages 2 and 3: a request for aggregates or contributions. The bitmap of counted ranks after an
-- aggregate's elements is not dissected: its start depends on the number of ranks, which is not in the packet.
local REPAIR_PREFIX = 8

-- CONTROL, messages 4 and 5: a grant of credit, and a request for it.
local CREDIT_LENGTH = 8
local CREDIT_GRANT, CREDIT_REQUEST = 4, 5

local function is_ultima(buffer)
    return buffer:len() >= HEADER_LENGTH
        and buffer(0, 2):uint() == MAGIC
        and buffer(2, 1):bitfield(0, 4) == VERSION
end

function ultima.dissector(buffer, pinfo, tree)
    if not is_ultima(buffer) then
        return 0
    end
    local authenticated = buffer(30, 1):bitfield(2, 1) == 1
    local length = HEADER_LENGTH + (authenticated and AUTH_LENGTH or 0)
    if buffer:len() < length then
        return 0
    end

    local kind = KINDS[buffer(2, 1):bitfield(4, 4)] or "unknown kind"
    pinfo.cols.protocol = "Ultima"
    pinfo.cols.info = string.format("%s job %d.%d op %d.%d rank %d > shard %d slot %d/%d",
        kind, buffer(12, 2):uint(), buffer(14, 2):uint(), buffer(24, 4):uint(), buffer(28, 2):uint(),
        buffer(16, 2):uint(), buffer(18, 2):uint(), buffer(32, 4):uint(), buffer(36, 4):uint())

    local subtree = tree:add(ultima, buffer(0, length), "Ultima " .. kind)
    for _, entry in ipairs(LAYOUT) do
        subtree:add(entry[3], buffer(entry[1], entry[2]))
    end
    if authenticated then
        subtree:add(f.digest, buffer(HEADER_LENGTH, 8))
        subtree:add(f.tag, buffer(HEADER_LENGTH + 8, 8))
    end
    if buffer:len() > length then
        subtree:add(f.payload, buffer(length))
    end
    if kind == "REPORT" and buffer:len() >= length + REPORT_LENGTH then
        for _, entry in ipairs(REPORT) do
            subtree:add(entry[3], buffer(length + entry[1], entry[2]))
        end
    end
    if kind == "FEEDBACK" and buffer:len() >= length + FEEDBACK_LENGTH then
        for _, entry in ipairs(FEEDBACK) do
            subtree:add(entry[3], buffer(length + entry[1], entry[2]))
        end
    end
    if kind == "CONTROL" and buffer:len() >= length + REPAIR_PREFIX and REPAIR_REQUESTS[buffer(length, 1):uint()] then
        subtree:add(f.repair_of, buffer(length, 1))
        subtree:add(f.repair_first, buffer(length + 4, 4))
        if buffer:len() > length + REPAIR_PREFIX then
            subtree:add(f.repair_wanted, buffer(length + REPAIR_PREFIX))
        end
    end
    if kind == "CONTROL" and buffer:len() >= length + CREDIT_LENGTH then
        local message = buffer(length, 1):uint()
        if message == CREDIT_GRANT then
            subtree:add(f.credit_window, buffer(length + 2, 2))
            subtree:add(f.credit_taken, buffer(length + 4, 4))
            if buffer:len() >= length + 12 then
                subtree:add(f.credit_arrived, buffer(length + 8, 4))
            end
        elseif message == CREDIT_REQUEST then
            subtree:add(f.credit_last, buffer(length + 4, 4))
        end
    end
    return buffer:len()
end

ultima:register_heuristic("udp", function(buffer, pinfo, tree)
    return is_ultima(buffer) and ultima.dissector(buffer, pinfo, tree) > 0
end)
