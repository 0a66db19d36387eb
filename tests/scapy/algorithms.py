"""What Scapy 2.5 lacks, written down from the RFCs on the block cipher, AEADs of OpenSSL through Python's `cryptography`:

- AES-XCBC-MAC-96 (RFC 3566),
- AES-GMAC in ESP and in AH (RFC 4543),
- implicit IVs: AES-GCM, AES-CCM and ChaCha20-Poly1305 whose nonces are sequence numbers (RFC 8750).

Everything around them (headers, padding, mutable fields, extended numbers) stays Scapy's own. Importing this file adds them to Scapy's lists.
"""

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from scapy.layers.ipsec import AH, AUTH_ALGOS, CRYPT_ALGOS, ESP, AuthAlgo, CryptAlgo, IPSecIntegrityError, zero_mutable_fields

BLOCK_BYTES = 16
SALT_BYTES = 4
GMAC_IV_BYTES = 8
TAG_BYTES = 16


class Xcbc:
    """RFC 3566 4, over a whole message."""

    def __init__(self, key):
        self.key, self.message = key, b""

    def update(self, data):
        self.message += data

    def finalize(self):
        k1, k2, k3 = (encrypt_block(self.key, bytes([number]) * BLOCK_BYTES) for number in (1, 2, 3))
        blocks = [self.message[at:at + BLOCK_BYTES] for at in range(0, len(self.message), BLOCK_BYTES)] or [b""]
        *first, last = blocks
        mac = bytes(BLOCK_BYTES)
        for block in first:
            mac = encrypt_block(k1, exclusive_or(mac, block))
        if len(last) == BLOCK_BYTES:
            return encrypt_block(k1, exclusive_or(exclusive_or(mac, last), k2))
        padded = (last + b"\x80").ljust(BLOCK_BYTES, b"\0")
        return encrypt_block(k1, exclusive_or(exclusive_or(mac, padded), k3))


class XcbcAlgo(AuthAlgo):
    def new_mac(self, key):
        return Xcbc(key)


def encrypt_block(key, block):
    encryptor = Cipher(AES(key), ECB()).encryptor()
    return encryptor.update(block) + encryptor.finalize()


def exclusive_or(a, b):
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


class GmacInAh(AuthAlgo):
    """RFC 4543 4: the ICV field holds IV and tag, and all of it is zero while the tag is computed. The key ends with the salt."""

    def sign(self, pkt, key, esn_en=False, esn=0):
        # Any bytes that do not repeat: the number, backwards, so that they are not what Testudo would choose.
        iv = struct.pack("!LL", esn, pkt[AH].seq)[::-1]
        aesgcm, nonce = self.parts(key, iv)
        pkt[AH].icv = iv + aesgcm.encrypt(nonce, b"", covered(pkt, esn_en, esn, sending=True))
        return pkt

    def verify(self, pkt, key, esn_en=False, esn=0):
        field = pkt[AH].icv
        pkt[AH].padding, pkt[AH].icv = field[self.icv_size:], field[:self.icv_size]
        iv, tag = field[:GMAC_IV_BYTES], field[GMAC_IV_BYTES:self.icv_size]
        aesgcm, nonce = self.parts(key, iv)
        try:
            aesgcm.decrypt(nonce, tag, covered(pkt, esn_en, esn, sending=False))
        except InvalidTag as error:
            raise IPSecIntegrityError(error) from error

    @staticmethod
    def parts(key, iv):
        return AESGCM(key[:-SALT_BYTES]), key[-SALT_BYTES:] + iv


def covered(packet, esn_en, esn, sending):
    """RFC 4302 3.3.3: the datagram, its mutable fields and the ICV field zero; then the high half of an extended number (2.5.1)."""
    return bytes(zero_mutable_fields(packet.copy(), sending=sending)) + (struct.pack("!L", esn) if esn_en else b"")


class CombinedMode(CryptAlgo):
    """A combined mode of ESP: with an implicit IV (RFC 8750 4), or one that does not encrypt (RFC 4543 3)."""

    def __init__(self, name, cipher, salt_bytes, icv_bytes=TAG_BYTES, iv_bytes=0, encrypts=True):
        super().__init__(
            name, cipher=cipher, mode=None, block_size=1, iv_size=iv_bytes, key_size=(16, 24, 32), icv_size=icv_bytes, salt_size=salt_bytes
        )
        self.encrypts = encrypts

    def aead(self, key):
        return self.cipher(key, tag_length=self.icv_size) if self.cipher is AESCCM else self.cipher(key)

    def encrypt(self, sa, esp, key, icv_size=None, esn_en=False, esn=0):
        nonce, number = self.nonce_and_number(sa, esp, esp.iv, esn_en, esn)
        text = esp.data_for_encryption()
        if self.encrypts:
            sealed = self.aead(key).encrypt(nonce, text, number)
        else:
            sealed = text + self.aead(key).encrypt(nonce, b"", number + esp.iv + text)
        return ESP(spi=esp.spi, seq=esp.seq, data=esp.iv + sealed)

    def decrypt(self, sa, esp, key, icv_size=None, esn_en=False, esn=0):
        iv, sealed = esp.data[:self.iv_size], esp.data[self.iv_size:]
        nonce, number = self.nonce_and_number(sa, esp, iv, esn_en, esn)
        try:
            if self.encrypts:
                text = self.aead(key).decrypt(nonce, sealed, number)
            else:
                text, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
                self.aead(key).decrypt(nonce, tag, number + iv + text)
        except InvalidTag as error:
            raise IPSecIntegrityError(error) from error
        # Takes off the trailer.
        return CRYPT_ALGOS["NULL"].decrypt(sa, ESP(spi=esp.spi, seq=esp.seq, data=text), b"")

    def nonce_and_number(self, sa, esp, iv, esn_en, esn):
        """Salt and IV, or salt and number in eight bytes; SPI and number, which are authenticated as ever."""
        number = struct.pack("!LLL", esp.spi, esn, esp.seq) if esn_en else struct.pack("!LL", esp.spi, esp.seq)
        implicit = struct.pack("!LL", esn if esn_en else 0, esp.seq)
        return sa.crypt_salt + (iv if self.iv_size else implicit), number


AUTH_ALGOS["AES-XCBC-96"] = XcbcAlgo("AES-XCBC-96", mac=Xcbc, digestmod=None, icv_size=12, key_size=(16,))
AUTH_ALGOS["AES-GMAC"] = GmacInAh(
    "AES-GMAC", mac=AESGCM, digestmod=None, icv_size=GMAC_IV_BYTES + TAG_BYTES, key_size=[key + SALT_BYTES for key in (16, 24, 32)]
)
CRYPT_ALGOS["AES-GMAC"] = CombinedMode("AES-GMAC", AESGCM, SALT_BYTES, iv_bytes=GMAC_IV_BYTES, encrypts=False)
CRYPT_ALGOS["AES-GCM-IIV"] = CombinedMode("AES-GCM-IIV", AESGCM, SALT_BYTES)
CRYPT_ALGOS["AES-CCM-IIV"] = CombinedMode("AES-CCM-IIV", AESCCM, 3, icv_bytes=8)
CRYPT_ALGOS["CHACHA20-POLY1305-IIV"] = CombinedMode("CHACHA20-POLY1305-IIV", ChaCha20Poly1305, SALT_BYTES)
