// A block of the stream Philox4x32-10.
inline uint4 philox(ulong seed, ulong counter) {
    uint a = (uint)counter, b = (uint)(counter >> 32), c = 0, d = 0;
    uint low = (uint)seed, high = (uint)(seed >> 32);
    for (int round_number = 0; round_number < 10; round_number++) {
        uint first_high = mul_hi(0xD2511F53u, a), first = 0xD2511F53u * a;
        uint second_high = mul_hi(0xCD9E8D57u, c), second = 0xCD9E8D57u * c;
        a = second_high ^ b ^ low;
        b = second;
        c = first_high ^ d ^ high;
        d = first;
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    return (uint4)(a, b, c, d);
}
