// The function of a result before it is stored, by its number.
inline ACC activated(ACC x) {
#if ACTIVATION == 1
    return x <= 0 ? 0 : x;
#elif ACTIVATION == 2
    // By erfc, since 1 + erf would cancel below 0.
    return x == -INFINITY ? 0 : (ACC)0.5f * x * erfc(x * -INVERSE_ROOT_2);
#elif ACTIVATION == 3
    return x == -INFINITY ? 0 : x / (1 + exp(-GELU_SCALE * x * (1 + GELU_CUBIC * x * x)));
#elif ACTIVATION == 4
    return x == -INFINITY ? 0 : x / (1 + exp(-GELU_SIGMOID * x));
#elif ACTIVATION == 5
    return 1 / (1 + exp(-x));
#elif ACTIVATION == 6
    return tanh(x);
#else
    return x;
#endif
}
