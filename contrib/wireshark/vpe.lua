-- Wireshark's view of Vector Packet Encapsulation, as docs/VPE.md of Testudo specifies it.
--
-- Copy this file into the folder of personal Lua plugins (Help, About Wireshark, Folders), or name it:
--     tshark -X lua_script:vpe.lua -r FILE
-- UDP port and IP protocol number are preferences: vpe.udp_port (4501) and vpe.ip_protocol (253; 0 for none).
-- What is encrypted stays so: Lua's Wireshark has no ciphers.

local vpe = Proto("vpe", "Vector Packet Encapsulation")

local HEADER_BYTES = 32
local KEEPALIVE = 0xff

local f = {
  sender = ProtoField.uint16("vpe.sender", "Sender ID", base.DEC),
  window = ProtoField.uint16("vpe.window", "Window ID", base.DEC),
  number = ProtoField.uint64("vpe.number", "Sequence number", base.DEC),
  spi = ProtoField.uint32("vpe.spi", "SPI", base.HEX),
  icv = ProtoField.bytes("vpe.icv", "ICV"),
  ciphertext = ProtoField.bytes("vpe.ciphertext", "Ciphertext"),
  keepalive = ProtoField.bool("vpe.keepalive", "NAT keepalive"),
}
vpe.fields = { f.sender, f.window, f.number, f.spi, f.icv, f.ciphertext, f.keepalive }

local e = {
  truncated = ProtoExpert.new("vpe.truncated", "Shorter than a VPE header", expert.group.MALFORMED, expert.severity.ERROR),
  zero = ProtoExpert.new("vpe.number.zero", "Numbers start at 1", expert.group.PROTOCOL, expert.severity.WARN),
  reserved = ProtoExpert.new("vpe.spi.reserved", "SPIs below 256 are reserved", expert.group.PROTOCOL, expert.severity.WARN),
}
vpe.experts = { e.truncated, e.zero, e.reserved }

vpe.prefs.udp_port = Pref.uint("UDP port", 4501, "UDP port of VPE")
vpe.prefs.ip_protocol = Pref.uint("IP protocol", 253, "IP protocol number of VPE; 0 for none")

function vpe.dissector(buffer, pinfo, tree)
  local bytes = buffer:len()
  if bytes == 0 then return 0 end
  pinfo.cols.protocol = "VPE"
  local top = tree:add(vpe, buffer())
  if bytes == 1 and buffer(0, 1):uint() == KEEPALIVE then
    top:add(f.keepalive, buffer(0, 1), true)
    pinfo.cols.info = "NAT keepalive"
    return bytes
  end
  if bytes < HEADER_BYTES then
    top:add_proto_expert_info(e.truncated)
    pinfo.cols.info = "Truncated"
    return bytes
  end
  local sender, window, spi = buffer(0, 2):le_uint(), buffer(2, 2):le_uint(), buffer(12, 4):le_uint()
  local number = buffer(4, 8):le_uint64()
  top:add_le(f.sender, buffer(0, 2))
  top:add_le(f.window, buffer(2, 2))
  local number_item = top:add_le(f.number, buffer(4, 8))
  if number == UInt64(0) then number_item:add_proto_expert_info(e.zero) end
  local spi_item = top:add_le(f.spi, buffer(12, 4))
  if spi < 256 then spi_item:add_proto_expert_info(e.reserved) end
  top:add(f.icv, buffer(16, 16))
  if bytes > HEADER_BYTES then top:add(f.ciphertext, buffer(HEADER_BYTES)) end
  top:append_text(string.format(", SPI 0x%08x, sender %u, window %u, number %s", spi, sender, window, tostring(number)))
  pinfo.cols.info = string.format("SPI 0x%08x sender %u window %u number %s", spi, sender, window, tostring(number))
  return bytes
end

local registered = {}

local function register(name, value)
  local dissectors = DissectorTable.get(name)
  if registered[name] then dissectors:remove(registered[name], vpe) end
  registered[name] = nil
  if value ~= 0 then
    dissectors:add(value, vpe)
    registered[name] = value
  end
end

local function register_both()
  register("udp.port", vpe.prefs.udp_port)
  register("ip.proto", vpe.prefs.ip_protocol)
end

vpe.prefs_changed = register_both
register_both()
