// One block each of MD5 (RFC 1321 3.4), SHA-1 and SHA-2 (FIPS 180-4 6). `w` is used up.

FN void md5(uint *h, const uint *w) {
  uint a = h[0], b = h[1], c = h[2], d = h[3];
  for (uint n = 0; n < 64; n++) {
    uint f, word, part = n / 16;
    if (part == 0) f = (b & c) | (~b & d), word = n;
    else if (part == 1) f = (d & b) | (~d & c), word = 5 * n + 1;
    else if (part == 2) f = b ^ c ^ d, word = 3 * n + 5;
    else f = c ^ (b | ~d), word = 7 * n;
    // The four shifts of each part, a byte each.
    uint shifts = part == 0 ? 0x16110c07 : part == 1 ? 0x140e0905 : part == 2 ? 0x17100b04 : 0x150f0a06;
    uint next = b + rotl(a + f + MD5_K[n] + w[word % 16], byte_of(shifts, n % 4));
    a = d, d = c, c = b, b = next;
  }
  h[0] += a, h[1] += b, h[2] += c, h[3] += d;
}

FN void sha1(uint *h, uint *w) {
  uint a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
  for (uint n = 0; n < 80; n++) {
    if (n >= 16) w[n % 16] = rotl(w[(n + 13) % 16] ^ w[(n + 8) % 16] ^ w[(n + 2) % 16] ^ w[n % 16], 1);
    uint f, k, part = n / 20;
    if (part == 0) f = (b & c) | (~b & d), k = 0x5a827999;
    else if (part == 1) f = b ^ c ^ d, k = 0x6ed9eba1;
    else if (part == 2) f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
    else f = b ^ c ^ d, k = 0xca62c1d6;
    uint next = rotl(a, 5) + f + e + k + w[n % 16];
    e = d, d = c, c = rotl(b, 30), b = a, a = next;
  }
  h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

FN void sha256(uint *h, uint *w) {
  uint v[8];
  for (uint n = 0; n < 8; n++) v[n] = h[n];
  for (uint n = 0; n < 64; n++) {
    if (n >= 16) {
      uint x = w[(n + 1) % 16], y = w[(n + 14) % 16];
      w[n % 16] += (rotr(x, 7) ^ rotr(x, 18) ^ x >> 3) + w[(n + 9) % 16] + (rotr(y, 17) ^ rotr(y, 19) ^
          y >> 10);
    }
    uint big1 = rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25);
    uint first = v[7] + big1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + SHA256_K[n] + w[n % 16];
    uint big0 = rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22);
    uint second = big0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    v[7] = v[6], v[6] = v[5], v[5] = v[4], v[4] = v[3] + first;
    v[3] = v[2], v[2] = v[1], v[1] = v[0], v[0] = first + second;
  }
  for (uint n = 0; n < 8; n++) h[n] += v[n];
}

FN void sha512(ulong *h, ulong *w) {
  ulong v[8];
  for (uint n = 0; n < 8; n++) v[n] = h[n];
  for (uint n = 0; n < 80; n++) {
    if (n >= 16) {
      ulong x = w[(n + 1) % 16], y = w[(n + 14) % 16];
      w[n % 16] += (rotr64(x, 1) ^ rotr64(x, 8) ^ x >> 7) + w[(n + 9) % 16] + (rotr64(y, 19) ^
          rotr64(y, 61) ^ y >> 6);
    }
    ulong big1 = rotr64(v[4], 14) ^ rotr64(v[4], 18) ^ rotr64(v[4], 41);
    ulong first = v[7] + big1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + SHA512_K[n] + w[n % 16];
    ulong big0 = rotr64(v[0], 28) ^ rotr64(v[0], 34) ^ rotr64(v[0], 39);
    ulong second = big0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    v[7] = v[6], v[6] = v[5], v[5] = v[4], v[4] = v[3] + first;
    v[3] = v[2], v[2] = v[1], v[1] = v[0], v[0] = first + second;
  }
  for (uint n = 0; n < 8; n++) h[n] += v[n];
}

FN void block_of(uint hash, uint *h, uint *w) {
  if (hash == HMAC_MD5) md5(h, w);
  else if (hash == HMAC_SHA1) sha1(h, w);
  else sha256(h, w);
}

// The word at byte `at` of a message with the bit that ends it.
FN uint ended_word(GLOBAL const uint *message, uint at, uint bytes) {
  uint word = word_within(message, at, bytes);
  return at <= bytes && bytes < at + 4 ? word | 0x80u << (8 * (bytes - at)) : word;
}

// HMAC (RFC 2104) with a hash of 32-bit words. Lengths are below 2^28 bytes.
FN void hmac(uint hash, GLOBAL const uint *states, GLOBAL const uint *message, uint bytes, uint *digest) {
  uint h[8], w[16], is_md5 = hash == HMAC_MD5;
  uint words = is_md5 ? 4 : hash == HMAC_SHA1 ? 5 : 8, blocks = (bytes + 9 + 63) / 64;
  for (uint n = 0; n < 8; n++) h[n] = states[n];
  // The last round is the outer hash, whose only block is the inner digest.
  for (uint block = 0; block <= blocks; block++) {
    uint is_outer = block == blocks, bits = (64 + (is_outer ? 4 * words : bytes)) * 8;
    for (uint n = 0; n < 16; n++) {
      if (is_outer) {
        w[n] = n < words ? h[n & 7] : n > words ? 0 : is_md5 ? 0x80 : 0x80000000;
      } else {
        uint word = ended_word(message, 64 * block + 4 * n, bytes);
        w[n] = is_md5 ? word : swapped(word);
      }
    }
    if (block + 1 >= blocks) w[is_md5 ? 14 : 15] = bits;
    if (is_outer) {
      for (uint n = 0; n < 8; n++) h[n] = states[8 + n];
    }
    block_of(hash, h, w);
  }
  for (uint n = 0; n < 8; n++) digest[n] = is_md5 ? h[n] : swapped(h[n]);
}

FN ulong pair_of(uint first, uint second) { return (ulong)swapped(first) << 32 | swapped(second); }

// The same with a hash of 64-bit words.
FN void long_hmac(uint hash, GLOBAL const uint *states, GLOBAL const uint *message, uint bytes,
    uint *digest) {
  ulong h[8], w[16];
  uint words = hash == HMAC_SHA384 ? 6 : 8, blocks = (bytes + 17 + 127) / 128;
  for (uint n = 0; n < 8; n++) h[n] = (ulong)states[2 * n] << 32 | states[2 * n + 1];
  for (uint block = 0; block <= blocks; block++) {
    uint is_outer = block == blocks, bits = (128 + (is_outer ? 8 * words : bytes)) * 8;
    for (uint n = 0; n < 16; n++) {
      uint at = 128 * block + 8 * n;
      if (is_outer) w[n] = n < words ? h[n & 7] : n > words ? 0 : (ulong)1 << 63;
      else w[n] = pair_of(ended_word(message, at, bytes), ended_word(message, at + 4, bytes));
    }
    if (block + 1 >= blocks) w[15] = bits;
    if (is_outer) {
      for (uint n = 0; n < 8; n++) h[n] = (ulong)states[16 + 2 * n] << 32 | states[16 + 2 * n + 1];
    }
    sha512(h, w);
  }
  for (uint n = 0; n < 8; n++) {
    digest[2 * n] = swapped((uint)(h[n] >> 32));
    digest[2 * n + 1] = swapped((uint)h[n]);
  }
}

